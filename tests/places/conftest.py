"""Fixtures of tests in other systems."""

from support.ranks.two_hosts import hosts

__all__ = ["hosts"]
