"""Corrupted video and frames between frames."""
