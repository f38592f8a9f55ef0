"""Starts: the first guess at every query, and the two kinds of data that choose it."""
