"""Helpers of the tests: ranks, arrays and tensors."""
