"""All that is on disk: checkpoints, run folders, saved agents."""
