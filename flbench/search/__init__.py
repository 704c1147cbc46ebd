"""Search for hyper-parameters: what is searched (spaces) and what is tried next (samplers)."""
