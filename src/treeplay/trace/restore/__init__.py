"""What a run changes besides its results: noted before it, told apart from what others change, and put back."""
