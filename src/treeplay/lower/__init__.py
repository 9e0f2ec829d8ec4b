"""From a graph to a callable: compiled by Inductor, or operator by operator."""
