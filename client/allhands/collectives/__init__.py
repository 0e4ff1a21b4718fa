"""Collectives as data: operations, arguments, algorithms, plans; no loop, no thread, no clock."""
