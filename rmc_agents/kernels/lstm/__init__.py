"""The scan of the LSTM."""
