"""Interpolation of spirals, clean and noisy."""
