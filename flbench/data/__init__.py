"""Samples, and who holds which: sources, partitions, and the federation that clients train on."""
