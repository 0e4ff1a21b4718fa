"""Ranks of a group, `group_src` and `group_dst`, in place of ranks of the world."""

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import allhands as ah
from allhands.testing import on_threads, run_threads
from programs import group_roots
from support.ranks.processes import BACKENDS, Job


@pytest.mark.parametrize("backend", BACKENDS)
def test_ranks_of_the_group_are_roots_and_peers(job: Job, backend: str) -> None:
    ranks = job(4, group_roots.exchange_all)
    for rank in ranks:
        rank.expect("done")
    assert [rank.ended() for rank in ranks] == [0] * 4


@pytest.mark.parametrize(
    "exchange",
    [group_roots.exchange_arrays, group_roots.exchange_objects, group_roots.exchange_messages],
)
def test_ranks_of_the_group_are_roots_and_peers_of_threads(
    exchange: Callable[[int], None],
) -> None:
    run_threads(4)(exchange)


def _x() -> Any:
    return np.zeros(1)


ROOTED: dict[str, Callable[..., object]] = {
    "broadcast": lambda **given: ah.broadcast(_x(), **given),
    "scatter": lambda **given: ah.scatter(_x(), **given),
    "scatter_v": lambda **given: ah.scatter_v(**given),
    "broadcast_object_list": lambda **given: ah.broadcast_object_list([1], **given),
    "scatter_object_list": lambda **given: ah.scatter_object_list([None], **given),
    "recv": lambda **given: ah.recv(_x(), **given),
    "irecv": lambda **given: ah.irecv(_x(), **given),
    "recv_object_list": lambda **given: ah.recv_object_list([None], **given),
    "reduce": lambda **given: ah.reduce(_x(), **given),
    "gather": lambda **given: ah.gather(_x(), **given),
    "gather_v": lambda **given: ah.gather_v(_x(), **given),
    "gather_object": lambda **given: ah.gather_object(1, **given),
    "send": lambda **given: ah.send(_x(), **given),
    "isend": lambda **given: ah.isend(_x(), **given),
    "send_object_list": lambda **given: ah.send_object_list([1], **given),
}
SENDING = ("send", "isend", "send_object_list")


def _name_root(call: str) -> str:
    return "src" if call.startswith(("broadcast", "scatter", "recv", "irecv")) else "dst"


@pytest.mark.parametrize("call", ROOTED)
def test_a_rank_of_both_kinds_is_refused_and_one_outside_the_group(call: str) -> None:
    name = _name_root(call)

    def body(rank: int) -> None:
        group = ah.new_group([1, 0])
        with pytest.raises(ValueError, match=f"give {name}, .* or group_{name}, .*: one of them"):
            ROOTED[call](group=group, **{name: 0, f"group_{name}": 1})
        with pytest.raises(ValueError, match=f"group_{name}=2 is not part of group"):
            ROOTED[call](group=group, **{f"group_{name}": 2})
        with pytest.raises(ValueError, match=f"group_{name}=-1 is not part of group"):
            ROOTED[call](group=group, **{f"group_{name}": -1})

    run_threads(2)(body)


@pytest.mark.parametrize("call", SENDING)
def test_a_message_without_a_receiver_is_refused(call: str) -> None:
    def body(rank: int) -> None:
        with pytest.raises(ValueError, match=r"no receiver: give dst, .* or group_dst"):
            ROOTED[call]()

    run_threads(2)(body)


@on_threads(2)
def test_a_batch_refuses_peers_of_both_kinds_and_of_none(rank: int) -> None:
    with pytest.raises(ValueError, match="one of them"):
        ah.P2POp(ah.isend, _x(), peer=1 - rank, group_peer=1 - rank)
    with pytest.raises(ValueError, match="no receiver"):
        ah.P2POp(ah.isend, _x())
    with pytest.raises(ValueError, match="group_src=5 is not part"):
        ah.P2POp(ah.irecv, _x(), group_peer=5)


@on_threads(3)
def test_a_rank_outside_the_group_may_name_its_ranks(rank: int) -> None:
    group = ah.new_group([1, 2])
    x = np.full(1, float(rank))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ah.broadcast(x, group=group, group_src=1)
    assert x[0] == (0 if rank == 0 else 2)
