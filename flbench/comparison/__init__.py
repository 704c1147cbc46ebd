"""Comparisons of methods over repetitions: their plan, training and folders."""
