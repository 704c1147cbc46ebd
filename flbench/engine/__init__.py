"""What trains the clients of a round.

Engines own devices and compiled functions, and nothing else.
"""
