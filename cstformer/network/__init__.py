"""The network: encodings, attention, transformer, readout."""
