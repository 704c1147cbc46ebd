"""Hyper-parameter search: studies that give every method the same budget."""
