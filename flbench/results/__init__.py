"""Reading the results of runs and studies: metrics, summaries and tables."""
