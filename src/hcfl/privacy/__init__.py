"""Differential privacy and sums for secure aggregation: clients send summands, with noise or masks; without Flower."""
