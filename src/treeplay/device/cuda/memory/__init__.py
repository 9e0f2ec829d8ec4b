"""Addresses for captures, and the memory that the scratch of recordings shares."""
