"""Frozen values that cross the borders between stages. Imports nothing of ours."""
