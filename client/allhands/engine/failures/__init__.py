"""Failures of a group: their record, the errors that calls raise, slow calls."""
