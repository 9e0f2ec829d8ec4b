"""Nodes of CUDA graphs: read, changed in place, and read back."""
