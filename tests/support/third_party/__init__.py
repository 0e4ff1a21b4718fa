"""A store and links as third parties write them, and broken variants for the suites to find."""
