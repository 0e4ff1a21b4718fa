"""Work: handles of calls that run elsewhere, and their kinds."""
