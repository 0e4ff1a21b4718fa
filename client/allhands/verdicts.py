"""Verdicts on calls and the states of absent ranks, as `allhands_proto.verdicts` has them."""

from allhands_proto.verdicts import (
    AbsentRank,
    CallCancellation,
    State,
    Verdict,
    append_clause,
    describe_absent_ranks,
)

__all__ = [
    "Absence",
    "AbsentRank",
    "CallCancellation",
    "State",
    "Verdict",
    "append_clause",
    "describe_absent_ranks",
]

Absence = AbsentRank
"""Public name."""
