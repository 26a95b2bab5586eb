"""What people look at: progress while it runs, tables and pictures when it ends."""
