"""One run: from a configuration to a finished run folder."""
