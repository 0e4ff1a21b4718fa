"""Refused calls: with c10d's texts, before any effect, as Gloo does.

All cases of one operation are tried in one world: each must be refused on every rank, and leave
what it was given as it was, and the number of the next call. A call at the end must go well.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.distributed as dist

from support.torch.ranks import run_ranks

SIZE = 3

Tensors = dict[str, Any]


@dataclass(frozen=True)
class Refused:
    """A refused call, with the error's class and `text`."""

    text: str
    attempt: Callable[[Any, Tensors, int], Any]
    kind: type[Exception] = RuntimeError
    gloo: bool = True
    """Whether Gloo refuses it with that text, too."""


def coo(length: int, dtype: Any = torch.float32) -> Any:
    """Return a sparse tensor with a one at the first index."""
    return torch.sparse_coo_tensor([[0]], [1], size=(length,), dtype=dtype, check_invariants=True)


def tensors() -> Tensors:
    return {
        "t1": torch.zeros(1),
        "t2": torch.zeros(1, dtype=torch.float64),
        "t3": torch.zeros(2),
        "t4": torch.zeros(1),
        "long": torch.zeros(1, dtype=torch.int64),
        "sparse": coo(2),
        "sparser": coo(4),
        "sparse long": coo(1, torch.int64),
    }


def tried(*cases: Refused, backend: str = "allhands") -> None:
    """Try all cases in one world."""

    def body(rank: int) -> None:
        group = dist.distributed_c10d._get_default_group()
        if backend == "gloo":  # before it what is given passes a dispatcher that has its own texts
            group = group._get_backend(torch.device("cpu"))
        for case in cases:
            if backend == "gloo" and not case.gloo:
                continue
            given, before = tensors(), tensors()
            number = group._get_sequence_number_for_group()
            with pytest.raises(case.kind, match=case.text):
                case.attempt(group, given, rank)
            if backend == "allhands":
                assert group._get_sequence_number_for_group() == number, case.text
            for name, tensor in given.items():
                assert torch.equal(tensor.to_dense(), before[name].to_dense()), (case.text, name)
        x = torch.tensor([rank])
        dist.all_reduce(x)
        assert x.item() == 3

    run_ranks(SIZE, body, backend=backend)


def both(*cases: Refused) -> None:
    """Try all cases over Gloo too: its users know these texts."""
    tried(*cases)
    tried(*cases, backend="gloo")
