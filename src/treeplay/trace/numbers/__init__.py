"""Numbers that stay numbers in a trace: symbols for those that vary, and what may be computed with them."""
