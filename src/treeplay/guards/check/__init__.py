"""The check of a recording's guards: quick in a warm call, and slow when that fails, to say what differs."""
