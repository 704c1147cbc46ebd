"""What trains the clients of a round; engines own devices and compiled functions alone."""
