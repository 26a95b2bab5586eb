"""Many runs as one table: comparisons, sweeps, the paper's tables."""
