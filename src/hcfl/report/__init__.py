"""Output for people: progress during a run, then tables, pictures and the HTML page."""
