"""Figures, tables and pages made from `result.json`; reads results, never computes them."""
