"""The keys of calls: what must be equal for two calls to share a recording."""
