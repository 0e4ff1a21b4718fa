"""Collective calls on communicators."""
