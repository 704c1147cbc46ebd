"""Classification metrics: per class, per client, pooled over clients, and for groups of classes."""
