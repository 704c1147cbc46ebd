"""What papers published, and the means to measure its like: `flbench reproduce`."""
