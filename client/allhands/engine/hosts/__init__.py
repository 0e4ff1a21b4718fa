"""Calls of groups that span hosts, and calls made of several steps."""
