"""Verdicts on calls and the states of absent ranks, as `allhands_proto.verdicts` has them."""

from allhands_proto.verdicts import (
    AbsentRank,
    CallCancellation,
    State,
    Verdict,
    describe_absent_rank,
)

__all__ = [
    "Absence",
    "AbsentRank",
    "CallCancellation",
    "State",
    "Verdict",
    "describe_absent_rank",
]

Absence = AbsentRank
"""Public name."""
