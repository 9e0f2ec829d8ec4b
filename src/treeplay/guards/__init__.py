"""Guards: the conditions under which a recording is valid, over everything that its traced run read."""
