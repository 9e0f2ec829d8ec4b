"""The function that launches a captured graph, written from what was found while it was captured."""
