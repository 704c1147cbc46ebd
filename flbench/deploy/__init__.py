"""Trained models: what a run deploys to a client, to predict with in Python and to export."""
