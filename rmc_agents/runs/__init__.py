"""Everything on disk: checkpoints, run folders, saved agents."""
