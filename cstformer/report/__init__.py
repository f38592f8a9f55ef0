"""Figures, tables and pages from `result.json`. This folder reads results and never computes them."""
