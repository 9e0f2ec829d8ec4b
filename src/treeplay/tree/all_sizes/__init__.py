"""Recordings that serve calls whose keys differ in sizes alone."""
