"""The scan of the LSTM with a relational memory, only in plain torch."""
