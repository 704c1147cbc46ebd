"""Processes of Ray: start of a cluster, resources, supervision, and what is sent to workers."""
