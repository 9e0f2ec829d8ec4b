"""The trace of a flat function through torch's ahead-of-time autograd, and what is put right in what it gives."""
