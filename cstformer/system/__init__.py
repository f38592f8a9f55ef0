"""Files, memory, threads, processes and clusters: what the rest of the package runs on."""
