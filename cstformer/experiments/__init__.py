"""The paper's experiments, one file each, on the shared machinery of `base`."""
