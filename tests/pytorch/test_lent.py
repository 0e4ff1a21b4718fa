"""Tensors of every kind in calls: of any dtype, layout, history and place in memory."""

import threading
from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
import torch.distributed as dist

from allhands.collectives.signature import CallSignature
from allhands.engine.work.work import Work as NativeWork
from allhands.runtime.callbacks import Callbacks
from allhands.torch.tensors import TensorViews
from allhands.torch.work import Work
from support.torch.ranks import on_ranks, run_ranks
from support.torch.reduction_cases import equal, given

SIZE = 2
pytestmark = [
    pytest.mark.filterwarnings("ignore:`torch.distributed.:FutureWarning"),
    pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental:UserWarning"),
]

INTEGERS = [
    *(torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.uint8, torch.uint16, torch.uint32, torch.uint64),
]
FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
NARROWEST = [torch.float8_e4m3fn, torch.float8_e5m2]
COMPLEX = [torch.complex64, torch.complex128]
COMBINED = [torch.bool, *INTEGERS, *FLOATS, *NARROWEST, *COMPLEX]
MOVED = [
    *COMBINED,
    *(torch.complex32, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz, torch.float8_e8m0fnu),
    torch.float4_e2m1fn_x2,
]


def of(dtype: Any, *values: int) -> Any:
    """Return a tensor of small numbers, or of bytes for formats without numbers in PyTorch."""
    if dtype is torch.float4_e2m1fn_x2:
        return torch.tensor(values, dtype=torch.uint8).view(dtype)
    return torch.tensor(values).to(dtype)


def bytes_of(tensor: Any) -> list[int]:
    return list(tensor.contiguous().view(torch.uint8).tolist())


@on_ranks(SIZE)
def test_tensors_of_every_dtype_move(rank: int) -> None:
    for dtype in MOVED:
        mine, theirs = of(dtype, rank, 1, 2 + rank), of(dtype, 1 - rank, 1, 3 - rank)
        x = mine.clone()
        dist.group.WORLD.broadcast([x]).wait()
        assert bytes_of(x) == bytes_of(of(dtype, 0, 1, 2)), dtype
        outputs = [torch.empty_like(mine) for _ in range(SIZE)]
        dist.group.WORLD.allgather([outputs], [mine]).wait()
        assert bytes_of(outputs[1 - rank]) == bytes_of(theirs), dtype
        if rank == 0:
            dist.group.WORLD.send([mine], 1, 0).wait()
        else:
            dist.group.WORLD.recv([x], 0, 0).wait()
            assert bytes_of(x) == bytes_of(theirs), dtype


@on_ranks(SIZE)
def test_tensors_of_every_dtype_are_added_up(rank: int) -> None:
    for dtype in COMBINED:
        x = of(dtype, rank, 1, 2)
        dist.all_reduce(x)
        wanted = (
            of(torch.bool, 1, 1, 1) if dtype is torch.bool else of(torch.int64, 1, 2, 4).to(dtype)
        )
        assert x.dtype == dtype
        assert bytes_of(x) == bytes_of(wanted), dtype


@on_ranks(SIZE)
def test_an_average_of_complex_halves_is_right(rank: int) -> None:
    """PyTorch's functions see complex halves as real numbers."""
    x = torch.tensor([1 + 2j, complex(rank, 0)], dtype=torch.complex32)
    dist.all_reduce(x, dist.ReduceOp.AVG)
    assert x.to(torch.complex64).tolist() == [1 + 2j, 0.5]


def test_p044_all_gather_of_complex_numbers() -> None:
    def body(rank: int) -> list[Any]:
        found = []
        for mine, room in (
            (torch.complex64, torch.complex64),
            (torch.complex64, torch.float32),
            (torch.float32, torch.complex64),
        ):
            x = torch.full((2, 2), rank + 1).to(mine)
            outputs = [torch.zeros(2, 2, dtype=room) for _ in range(SIZE)]
            try:
                dist.all_gather(outputs, x)
                found.append([one.tolist() for one in outputs])
            except (ValueError, RuntimeError) as error:
                found.append(type(error).__name__)
        return found

    ours, gloo = (run_ranks(SIZE, body, backend=one) for one in ("allhands", "gloo"))
    assert ours[0][0] == [[[one + 0j] * 2] * 2 for one in (1, 2)]
    for found in (ours, gloo):
        assert [isinstance(one, str) for one in found[0][1:]] == [True, True], found


@pytest.mark.parametrize("backend", ["allhands", "gloo"])
def test_p044_real_tensors_among_complex_ones_of_as_many_bytes(backend: str) -> None:
    def body(rank: int) -> None:
        parts = torch.tensor([rank + 0.5, -rank])
        for which in ((), (1,), (0, 1)):
            for mine in (parts, torch.view_as_complex(parts)):
                rooms = [torch.zeros(2) for _ in range(SIZE)]
                outputs = [
                    torch.view_as_complex(room) if at in which else room
                    for at, room in enumerate(rooms)
                ]
                dist.all_gather(outputs, mine)
                assert [room.tolist() for room in rooms] == [[0.5, 0], [1.5, -1]]

    run_ranks(SIZE, body, backend=backend)


# ---------------------------------------------------------------- layouts


def plain(x: Any) -> Any:
    return x.clone()


def turned(x: Any) -> Any:
    return x.t().contiguous().t()


def column(x: Any) -> Any:
    return torch.stack([x, torch.full_like(x, -1)], dim=-1)[..., 0]


def conjugate(x: Any) -> Any:
    return x.conj().resolve_conj().conj()


def negative(x: Any) -> Any:
    """Return a tensor over memory of negated numbers."""
    found = torch.complex(torch.zeros_like(x), -x).conj().imag
    assert found.is_neg()
    return found


def parameter(x: Any) -> Any:
    return torch.nn.Parameter(x.clone())


def made_for_inference(x: Any) -> Any:
    with torch.inference_mode():
        return x.t().contiguous().t()


LAYOUTS: list[Callable[[Any], Any]] = [
    *(plain, turned, column, negative, parameter, made_for_inference),
]


@on_ranks(SIZE)
def test_tensors_of_every_layout_are_read_and_written_in_place(rank: int) -> None:
    pg = dist.group.WORLD
    numbers = torch.arange(4.0).reshape(2, 2)
    total = 2 * numbers + 1
    for make in LAYOUTS:
        with torch.no_grad():
            x = make(numbers + rank)
        equal(given(pg.allreduce([x])), [x])
        assert torch.equal(x, total), make
        x = make(numbers + rank)
        dist.broadcast(x, 1)
        assert torch.equal(x, numbers + 1), make
        outputs = [make(torch.zeros(2, 2)) for _ in range(SIZE)]
        dist.all_gather(outputs, make(numbers + rank))
        assert torch.equal(outputs[0], numbers), make
        assert torch.equal(outputs[1], numbers + 1), make
        whole = make(torch.zeros(4, 2))
        dist.all_gather_into_tensor(whole, make(numbers + rank))
        assert torch.equal(whole, torch.cat([numbers, numbers + 1])), make
        output = make(torch.zeros(1, 2))
        dist.reduce_scatter_tensor(output, make(numbers + rank))
        assert torch.equal(output, total[rank : rank + 1]), make
        if rank == 0:
            pg.send([make(numbers)], 1, 7).wait()
        else:
            x = make(torch.zeros(2, 2))
            pg.recv([x], 0, 7).wait()
            assert torch.equal(x, numbers), make


@on_ranks(SIZE)
def test_what_lies_around_a_view_stays_as_it_is(rank: int) -> None:
    whole = torch.full((4, 4), float(rank))
    dist.all_reduce(whole[1:3, 1:3])
    wanted = torch.full((4, 4), float(rank))
    wanted[1:3, 1:3] = 1
    equal(whole, wanted)


@on_ranks(SIZE)
def test_conjugates_are_read_as_what_they_stand_for(rank: int) -> None:
    x = conjugate(torch.tensor([1 + 2j, complex(0, rank)]))
    assert x.is_conj()
    outputs = [torch.zeros(2, dtype=torch.complex64) for _ in range(SIZE)]
    dist.group.WORLD.allgather([outputs], [x]).wait()
    equal(outputs, [torch.tensor([1 + 2j, 0]), torch.tensor([1 + 2j, 1j])])
    dist.group.WORLD.allreduce([x]).wait()
    equal(x.resolve_conj(), torch.tensor([2 + 4j, 1j]))


@on_ranks(SIZE)
def test_pictures_with_channels_last_keep_their_format(rank: int) -> None:
    """Also with different formats by rank: elements go by index, not by memory."""
    numbers = torch.arange(2.0 * 3 * 4 * 4).reshape(2, 3, 4, 4) * (rank + 1)
    x = numbers.to(memory_format=torch.channels_last) if rank else numbers.clone()
    dist.all_reduce(x)
    equal(x, torch.arange(2.0 * 3 * 4 * 4).reshape(2, 3, 4, 4) * 3)
    assert x.is_contiguous(memory_format=torch.channels_last) is bool(rank)


@on_ranks(SIZE)
def test_tensors_without_dimensions_or_elements(rank: int) -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.int64, torch.float8_e5m2):
        x = torch.tensor(rank + 1).to(dtype)
        dist.all_reduce(x)
        assert x.shape == ()
        assert x.to(torch.float32).item() == 3
        for shape in ((0,), (3, 0), (0, 3)):
            x = torch.empty(shape, dtype=dtype)
            dist.all_reduce(x)
            outputs = [torch.empty(shape, dtype=dtype) for _ in range(SIZE)]
            dist.all_gather(outputs, x)
            assert outputs[0].shape == shape


@on_ranks(SIZE)
def test_a_tensor_that_wants_gradients_keeps_its_history(rank: int) -> None:
    weight = torch.nn.Parameter(torch.full((2,), float(rank)))
    out = (weight * 3).detach()
    dist.all_reduce(out)
    product = weight * 2
    copied = product.detach().t() if product.dim() > 1 else product.detach()
    dist.all_reduce(copied)
    product.sum().backward()
    equal(weight.grad, torch.full((2,), 2.0))
    dist.all_reduce(weight.grad)
    equal(weight.grad, torch.full((2,), 4.0))
    assert weight.requires_grad
    assert weight.is_leaf


@on_ranks(SIZE)
def test_what_is_written_may_be_a_part_of_what_is_read(rank: int) -> None:
    x = torch.arange(4.0) + 10 * rank
    dist.reduce_scatter_tensor(x[2 * rank : 2 * rank + 2], x)
    mine = torch.tensor([[10.0, 12.0], [14.0, 16.0]])[rank]
    equal(x[2 * rank : 2 * rank + 2], mine)


@on_ranks(SIZE)
def test_a_buffer_may_be_dropped_while_its_call_runs(rank: int) -> None:
    """The call holds the buffer and the staged copy."""
    whole = torch.zeros(1000, 2)
    works = []
    for _ in range(50):
        x = torch.full((1000, 2), rank + 1.0)[:, 0]
        works.append((dist.all_reduce(x, async_op=True), x[:1]))
        del x
    view = whole[:, 1]
    dist.all_reduce(view, async_op=True)
    del view
    dist.barrier()
    for work, first in works:
        work.wait()
        assert first.item() == 3


class _Never:
    """Callbacks without a turn."""

    is_inherited = False

    def run(self, act: Callable[[], object]) -> bool:
        return True


def test_the_future_of_a_call_that_has_ended_gives_a_copied_tensor_its_result() -> None:
    x = torch.arange(6.0).reshape(2, 3).t()
    native = NativeWork(CallSignature("all_reduce"), 1, None, "world", cast(Callbacks, _Never()))
    lent = TensorViews("all_reduce")
    lent.view_inout(x)[...] = 7.0
    work = Work(native, lent, [x])
    native.succeed(None)
    found: list[Any] = []
    asking = threading.Thread(target=lambda: found.append(work.get_future().wait()), daemon=True)
    asking.start()
    asking.join(10)
    assert found[0][0].tolist() == [[7.0] * 2] * 3
