"""The survey: what a program can reach, before it runs."""
