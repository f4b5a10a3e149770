"""rmc-bench: where training time goes."""
