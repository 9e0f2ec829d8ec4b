"""From a compiled graph to one that a device replays: whether it may be, and how it is called."""
