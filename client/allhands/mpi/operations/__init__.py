"""Reduction operations: those of the standard and those of programs."""
