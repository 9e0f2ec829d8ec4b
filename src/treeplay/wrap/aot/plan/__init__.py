"""From what torch's tracing found to a `CallPlan`: memory, aliasing and classes of arguments, results and saved values."""
