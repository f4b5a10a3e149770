"""The scan of the minGRU."""
