"""Operations by name, as in functional calls."""

from allhands.collectives.reduction import ReduceOp


def parse_op(op: ReduceOp | str) -> ReduceOp:
    """Return the reduction of a name: "sum", "avg", "max" or any other of `ReduceOp`.

    Raises:
        ValueError: the name is unknown.
    """
    if not isinstance(op, str):
        return op
    found = getattr(ReduceOp, op.upper(), None)
    if not isinstance(found, ReduceOp):
        raise ValueError(f"op must be a ReduceOp or the name of one, such as 'sum', not {op!r}")
    return found
