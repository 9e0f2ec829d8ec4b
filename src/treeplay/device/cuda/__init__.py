"""CUDA devices. Importing this asks nothing of CUDA and creates no context."""
