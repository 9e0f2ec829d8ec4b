"""The front end of `jit`: a program → its operators as a graph, and a signature."""
