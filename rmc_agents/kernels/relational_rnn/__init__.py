"""The LSTM with a relational memory: its scan, in plain torch alone."""
