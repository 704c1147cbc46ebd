"""Copies of run and study folders in MLflow, sent by a process of its own."""
