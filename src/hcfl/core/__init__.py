"""Algorithm 1: rounds, clients, server, aggregation, admission, evaluation, state."""
