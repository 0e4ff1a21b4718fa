"""Calls over links: execution of schedules as messages, with guards of the output."""
