"""Calls on arrays with known results, valid and invalid ones."""
