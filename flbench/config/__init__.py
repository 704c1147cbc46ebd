"""The configuration: its schema with every default, its sources, and their resolution."""
