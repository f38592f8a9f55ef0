"""What the Sobolev term does."""
