"""The engine whose clients are on other machines: what travels, and who is asked."""
