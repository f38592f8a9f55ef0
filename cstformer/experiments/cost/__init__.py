"""Time and memory of a training step."""
