"""Whether a recording is worth what it costs: time of calls, time to compile, memory."""
