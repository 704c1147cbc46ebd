"""What one client does in a round.

Programs, the one local loss, and the LightningModule around it.
"""
