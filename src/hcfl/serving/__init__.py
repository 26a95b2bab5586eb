"""What a run that ended is for: predictions, new clients, models as files."""
