"""Published results of papers, and runs that measure the same quantities: `flbench reproduce`."""
