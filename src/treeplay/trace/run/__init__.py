"""The traced run: operators and torch functions on tensors without data, and the graph that is written of them."""
