"""From a plan to the source of the functions that a call and its autograd node run."""
