"""rmc-sweep: searching settings."""
