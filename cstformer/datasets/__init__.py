"""Data sets: generators and readers that make `Samples`."""
