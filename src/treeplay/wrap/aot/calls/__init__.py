"""What generated functions call, and what a call and its backward keep."""
