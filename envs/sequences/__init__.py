"""Sequences to learn from with the right answers at hand, as environments: Nth Farthest, programs, text."""
