"""What all packages share: trees of tensors, random streams, registries, errors, files."""
