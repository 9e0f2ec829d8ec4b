"""Graphs of any shape and of any size, brought to the form that compilers take."""
