"""Fixtures of tests of whole deployments."""

from support.ranks.two_hosts import hosts

__all__ = ["hosts"]
