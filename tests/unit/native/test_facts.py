"""Facts common to Python and the native core must be the same."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from allhands.collectives.primitive_table import CORE_KINDS, Primitive
from allhands.collectives.reduction import OPS
from allhands.collectives.reduction.dtypes import TYPES
from allhands.engine.p2p.message import describe_sent
from allhands.recorder import call_samples
from allhands.recorder.record import OUTCOMES

native: Any = pytest.importorskip("allhands._native", reason="installed without the native core")

KERNELS = Path(__file__).parents[3] / "client/allhands/native/kernels/kernels.h"


def test_outcomes_have_the_numbers_of_the_core() -> None:
    assert native.OUTCOMES == OUTCOMES


def test_the_core_carries_out_the_collectives_of_these_names() -> None:
    assert tuple(CORE_KINDS) == native.KINDS


@pytest.mark.parametrize("row", CORE_KINDS.values(), ids=CORE_KINDS)
def test_the_core_has_a_method_for_inline_calls_where_the_row_says_so(row: Primitive) -> None:
    assert row.has_inline_method == hasattr(native.ShmComm, row.name)


def test_as_many_start_times_are_kept() -> None:
    assert native.STARTS_KEPT == call_samples.MAX_SAMPLES


def enumerators(name: str) -> list[str]:
    """Return the names in an enum of the kernels, without the last name, the count."""
    body = re.search(rf"typedef enum {{([^}}]*)}} {name};", KERNELS.read_text())
    assert body is not None
    code = re.sub(r"/\*.*?\*/", "", body[1], flags=re.DOTALL)
    return [one.strip().removeprefix("AH_").lower() for one in code.split(",")][:-1]


def test_operations_and_dtypes_have_the_numbers_of_the_kernels() -> None:
    assert enumerators("ah_op") == [op.name.lower() for op in OPS]
    assert enumerators("ah_type") == list(TYPES)


@pytest.mark.parametrize("dtype", ["float32", "int8", "complex128", "bfloat16"])
def test_a_message_is_described_by_its_signature(dtype: str) -> None:
    itemsize = 2 if dtype == "bfloat16" else np.dtype(dtype).itemsize
    signature = native.ShmP2P.signature(dtype, 3)
    described = describe_sent(3 * itemsize, signature, native.ShmP2P.signature)
    assert described == f"message({dtype}[3])"
