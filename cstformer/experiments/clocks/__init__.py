"""Recordings with dropped frames and jitter."""
