"""Histories of concurrent calls of a coordinator, and the check that they are linearizable."""
