"""Truncated Taylor series and the derivatives that they carry."""
