"""Samples, movies and queries: how data comes in, travels and goes out."""
