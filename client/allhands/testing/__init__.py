"""What allhands is tested with, for use in the tests of others."""

from allhands.testing.interleave import interleave
from allhands.testing.replica import ScheduleError
from allhands.testing.simulate import Traffic, simulate

__all__ = ["ScheduleError", "Traffic", "interleave", "simulate"]
