"""Search for hyper-parameters: studies of methods under an equal budget."""
