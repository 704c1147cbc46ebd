"""What is measured: per class and per client, rare and confusable classes, spread over clients."""
