"""The programs, by area."""
