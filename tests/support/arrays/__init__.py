"""Calls on arrays whose results are known, right and wrong ones."""
