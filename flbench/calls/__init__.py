"""What the functions for scripts and notebooks share: arguments, and the state of the process."""
