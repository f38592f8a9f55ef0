"""Imputation: missing values of real and simulated series."""
