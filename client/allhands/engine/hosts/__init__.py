"""Calls of groups that span hosts, and composite calls of several steps."""
