"""Captures of a piece of work: from its first one to a graph that can be launched."""
