"""Leave no mark: what stands between the user and a stage, whatever is raised in it and whenever."""
