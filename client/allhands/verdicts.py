"""Verdicts on calls and the states of absent ranks, as `allhands_proto.values` has them."""

from allhands_proto.values import AbsentRank, CallCancellation, State, Verdict, describe_absent_rank

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
