"""Less for the server to see: clients give their parts of sums, and these are noised or masked. No Flower in here."""
