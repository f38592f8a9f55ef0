"""Intervals: how often they cover, and how wide they are."""
