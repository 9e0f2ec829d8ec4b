"""From a signature or a plan to the one straight-line function that a call runs."""
