"""Models: what every model can do, and CST."""
