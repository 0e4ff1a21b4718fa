"""Fixtures for tests of worlds across two hosts."""

from support.ranks.two_hosts import hosts, span, spread

__all__ = ["hosts", "span", "spread"]
