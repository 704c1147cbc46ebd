"""Processes that train: workers of this machine and of Ray, supervision, what is sent to them."""
