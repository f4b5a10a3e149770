"""The scan of the Elman network."""
