"""The scan of the GRU."""
