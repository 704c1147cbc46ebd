"""What methods share: prototypes, similarities, and later topologies, masks, clustering."""
