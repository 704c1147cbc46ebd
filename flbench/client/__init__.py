"""What one client does in a round: programs, the one local loss, the LightningModule."""
