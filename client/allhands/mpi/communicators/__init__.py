"""Communicators: groups of ranks with messages of their own, with or without a topology."""
