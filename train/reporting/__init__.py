"""What a run tells: progress on the console, TensorBoard and trackers."""
