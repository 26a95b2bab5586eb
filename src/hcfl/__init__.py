"""hcfl: clustered federated learning on four independent tiers."""
