"""Widefield calcium imaging: recordings from files, their preprocessing, and a simulator that knows the truth."""
