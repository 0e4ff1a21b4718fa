"""Requests of non-blocking calls, and the kinds of messages beside plain ones."""
