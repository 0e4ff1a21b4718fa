"""Fake worlds: a single rank of a world of any size, without peers."""
