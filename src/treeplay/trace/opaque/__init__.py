"""Programs that are recorded as they run, without a trace."""
