"""Shared memory of the ranks of one host, and its partition into areas."""
