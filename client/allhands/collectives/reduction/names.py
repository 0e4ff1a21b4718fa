"""Reductions by name: "sum" and the like, in place of a `ReduceOp`."""

from allhands.collectives.reduction.op import ReduceOp
from allhands.suggestions import OP_HABITS, suggest


def parse_op(op: ReduceOp | str) -> ReduceOp:
    """Return the reduction of a name: "sum", "avg", "max" or any other of `ReduceOp`.

    What is no text is returned as it is.

    Raises:
        ValueError: the name is unknown.
    """
    if not isinstance(op, str):
        return op
    name = op.upper()
    if name in ReduceOp.__members__:
        return ReduceOp[name]
    text = f"op must be a ReduceOp or the name of one, such as 'sum', not {op!r}"
    hint = suggest(op, ReduceOp.__members__, OP_HABITS)
    raise ValueError(f"{text}.{hint}" if hint else text)
