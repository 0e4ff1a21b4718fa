"""A world of which only one rank exists."""
