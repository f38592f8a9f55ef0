"""Widefield calcium: frames, decoding, waves."""
