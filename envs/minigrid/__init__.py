"""MiniGrid's memory tasks on a compiled engine."""
