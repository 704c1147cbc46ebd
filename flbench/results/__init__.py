"""What a run folder holds, read back: metrics, summary, tables."""
