"""What methods share: prototypes, mixtures, topologies, masks, clusters, votes."""
