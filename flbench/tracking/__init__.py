"""Where figures go: the run folder, always."""
