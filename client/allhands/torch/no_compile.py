"""Exclusion of functions and classes from torch.compile."""

import types
from typing import TypeVar

from torch._C._dynamo import eval_frame

Kind = TypeVar("Kind")

REASON = "it does input and output of its own, as collectives written in C++ do"


def exclude_from_compile(cls: type[Kind]) -> type[Kind]:
    """Decorate a class whose methods break the graph and run outside.

    `torch.compiler.disable` would say the same, and load the compiler to say it.
    """
    for found in vars(cls).values():
        if isinstance(found, types.FunctionType):
            disable_compile(found)
    return cls


def disable_compile(function: types.FunctionType) -> None:
    """Exclude a function and all callees from the compiler."""
    skip = eval_frame._FrameAction.SKIP
    strategy = eval_frame._FrameExecStrategy(skip, skip)
    eval_frame.set_code_exec_strategy(function.__code__, strategy)
    function._torchdynamo_disable = True  # type: ignore[attr-defined]
    function._torchdynamo_disable_msg = REASON  # type: ignore[attr-defined]
