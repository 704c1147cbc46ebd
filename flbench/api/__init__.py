"""The interface for scripts and notebooks; `import flbench as fl` exports its names."""
