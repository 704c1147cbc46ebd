"""The vocabulary of all packages: trees of tensors, random streams, registries, errors, files."""
