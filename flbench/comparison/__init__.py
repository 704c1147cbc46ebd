"""Comparisons of methods over repetitions: arrangement of runs, statistics, and the report."""
