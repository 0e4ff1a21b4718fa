"""Memory that the ranks of one host share, and who has which part of it."""
