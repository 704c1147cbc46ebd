"""What one client does in a round: local programs, the local loss, and the LightningModule."""
