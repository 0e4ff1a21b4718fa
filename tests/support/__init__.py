"""Helpers of the tests: ranks to run them on, arrays and tensors to run them with."""
