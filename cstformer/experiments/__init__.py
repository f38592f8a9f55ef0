"""The experiments of the paper, a folder each, on the shared code of `base`, `training`, `figures` and `metrics`."""
