"""Stable-Baselines3's algorithms in this project's runs."""
