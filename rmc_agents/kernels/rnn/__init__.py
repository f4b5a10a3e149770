"""The scan of Elman's RNN."""
