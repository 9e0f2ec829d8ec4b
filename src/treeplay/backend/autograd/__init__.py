"""Graphs that the caller differentiates: what a forward saves, and when its backward is compiled."""
