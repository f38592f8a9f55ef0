"""Attention maps at new coordinates."""
