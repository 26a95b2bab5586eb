"""The engine whose clients are on other machines: messages, and which node is which client."""
