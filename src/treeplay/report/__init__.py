"""What a user is told of a program: `explain()`, `check`, statistics."""
