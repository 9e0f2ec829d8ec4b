"""The `torch.compile` backend: a traced graph of any shape in, a callable with the same results out."""
