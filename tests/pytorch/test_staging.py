"""Tensors of devices whose memory is out of reach: staged through host memory, and written back.

There is no such device here, so one is made up: PyTorch lets a backend in Python stand for one. It
keeps its tensors in memory that only its own copies reach.
"""

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

from allhands.torch import tensors
from torch_ranks import run_ranks

DEVICE = "faraway"


class Far(torch.Tensor):
    """A tensor of the device that is made up; `raw` is its memory."""

    raw: torch.Tensor

    @staticmethod
    def of(raw: torch.Tensor) -> "Far":
        made: Any = torch._C._acc.create_empty_tensor(raw.shape, raw.dtype)
        made.__class__ = Far
        made.raw = raw
        found: Far = made
        return found


def make_device(copies: list[str]) -> Any:
    """Let PyTorch have the device while what this returns is held.

    `copies` hears of what goes there and back.
    """
    _setup_privateuseone_for_python_backend(DEVICE)

    def copy(source: Any, target: Any, non_blocking: bool = False) -> Any:
        near = getattr(source, "raw", source)
        if target.device.type == DEVICE:
            copies.append("there")
            target.raw.copy_(near)
        else:
            copies.append("back")
            torch.Tensor.copy_(target, near)
        return target

    def empty(size: Any, stride: Any, *, dtype: Any = None, **_: Any) -> Far:
        return Far.of(torch.empty_strided(size, stride, dtype=dtype))

    library = torch.library.Library("aten", "IMPL", "PrivateUse1")
    library.impl("_copy_from", copy)
    library.impl("empty_strided", empty)
    library.impl("detach", lambda one: Far.of(one.raw.detach()))
    return library


def far(values: list[float]) -> torch.Tensor:
    return torch.tensor(values).to(DEVICE)


def test_tensors_of_a_device_are_staged_and_written_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensors, "_DEVICES", (*tensors._DEVICES, DEVICE))

    def body(rank: int) -> Any:
        copies: list[str] = []
        held = make_device(copies)
        x = far([rank + 1.0, 10.0])
        assert x.device.type == DEVICE
        copies.clear()
        dist.all_reduce(x)
        assert copies == ["back", "there"]
        assert x.cpu().tolist() == [3.0, 20.0]

        work = dist.all_reduce(x, async_op=True)
        copies.clear()
        work.get_future().wait()
        assert x.cpu().tolist() == [6.0, 40.0]

        each = [far([0.0, 0.0]) for _ in range(2)]
        dist.all_gather(each, far([float(rank), 5.0]))
        assert [one.cpu().tolist() for one in each] == [[0.0, 5.0], [1.0, 5.0]]
        if rank == 0:
            dist.send(far([7.0]), 1)
        else:
            x = far([0.0])
            dist.recv(x, 0)
            assert x.cpu().tolist() == [7.0]
        copies.clear()
        dist.broadcast(far([1.0]), 0)
        del held
        return copies

    assert run_ranks(2, body) == [["there", "back", "there"]] * 2
