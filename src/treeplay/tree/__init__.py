"""The recordings of one program: which call gets which, and when one is made, tried, kept or dropped."""
