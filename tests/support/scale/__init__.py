"""Simulation of worlds larger than a machine has room for, and its table beside measured ones."""
