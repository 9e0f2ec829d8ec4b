"""What a run read and which code ran, noted while it ran."""
