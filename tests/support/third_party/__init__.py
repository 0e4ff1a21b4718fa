"""A store and links written by third parties, and broken variants for the suites to find."""
