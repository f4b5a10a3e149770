"""Sequences with known right answers, as environments: Nth Farthest, programs, text."""
