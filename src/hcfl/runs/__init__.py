"""A run from its configuration to its folder: prepare, play, save, restore, load."""
