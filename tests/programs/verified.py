"""Verifying groups: differing results, and frames changed on the link."""

import os
import random
import struct
import threading
import time
import zlib
from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

import numpy as np

import allhands as ah
from allhands.engine import result_check
from allhands.engine.call_runner import CallRunner
from allhands.engine.direct_calls import DirectCalls
from allhands.engine.result_check import ResultCheck
from allhands.testing.faults import flipped
from allhands.transport import digests
from allhands.transport.digests import LinkKey
from allhands.transport.frame import HEADER_BYTES, whole
from allhands.transport.link_state import PlainLinkState
from programs.played_hosts import play_host
from programs.protocol import failure, hear, tell
from support.arrays.collective_cases import (
    EVERY,
    case,
)

LinkFrame: TypeAlias = tuple[tuple[int, int], int]
"""A link of the world, and the number of a frame among those of it with a digest."""


def _join(hosts: str, **options: Any) -> None:
    """Join a world that verifies, on `hosts` as `play_host` has them if there are any."""
    if hosts:
        play_host(hosts)
    ah.init_process_group(timeout=20, verify=True, **options)


def every_collective(hosts: str = "") -> None:
    _join(hosts)
    n, me = ah.get_world_size(), ah.get_rank()
    wrong = []
    for step, (name, length) in enumerate((one, size) for one in EVERY for size in (0, 5, 300_000)):
        one = case(name, me, n, length, root=step % n, seed=step)
        one.run(ah)
        wrong += filter(None, [one.wrong()])
    again = ah.all_reduce_init(np.ones(4))
    for _ in range(3):
        again.start()
        again.wait()
    plain, checked = ah.new_group(verify=False), ah.new_group()
    ah.barrier(plain)
    ah.barrier(checked)
    tell("done", wrong=wrong, verify=[g.verify for g in (ah.default_group(), plain, checked)])
    ah.destroy_process_group()


def come_late(rounds: int, hosts: str = "") -> None:
    """Make short calls of all kinds, to some of which ranks come later than others wait here."""
    own, crc = random.Random(int(os.environ["RANK"])), result_check.load_checksum()

    def checksum(data: memoryview, value: int = 0, /) -> int:
        if own.random() < 0.1:
            time.sleep(0.005)
        return crc(data, value)

    result_check.load_checksum = lambda: checksum
    progress = count_progress()
    _join(hosts)
    n, me = ah.get_world_size(), ah.get_rank()
    runner: Any = CallRunner
    run, verify = runner._run_call, runner._verify
    seen = {"on the loop": 0, "gone on with": 0, "compared there": 0}

    async def note_run(self: Any, operation: Any, started: Any) -> None:
        seen["on the loop"] += 1
        await run(self, operation, started)

    async def note_verify(self: Any, operation: Any, check: Any, comparison: Any) -> None:
        seen["compared there" if comparison is None else "gone on with"] += 1
        await verify(self, operation, check, comparison)

    runner._run_call, runner._verify = note_run, note_verify
    wrong, x = [], np.zeros(3)
    honest = ResultCheck.begin_comparison

    def begin(self: Any, *arguments: Any) -> Any:
        if own.random() < 0.1:
            time.sleep(0.005)
        return honest(self, *arguments)

    ResultCheck.begin_comparison = begin  # type: ignore[method-assign, assignment]
    for step in range(rounds):
        if own.random() < 0.1:
            time.sleep(0.005)
        one = case(EVERY[step % len(EVERY)], me, n, 5, root=step % n, seed=step)
        one.run(ah)
        wrong += filter(None, [one.wrong()])
        x[:] = me + step
        ah.all_reduce(x, "avg")
        if not (x == (n - 1) / 2 + step).all():
            wrong.append(f"average {step}")
    tell("done", wrong=wrong, seen=seen | progress, calls=2 * rounds)
    ah.destroy_process_group()


def count_progress() -> dict[str, int]:
    """Count how far calls have come in the native core that are handed over from there."""
    handed_over, found = DirectCalls.hand_over, {"called": 0, "comparing": 0, "compared": 0}

    def hand_over(self: Any, *arguments: Any) -> Any:
        _, staged, comparison = arguments[3]
        if staged is not None:
            found["called"] += 1
        elif comparison is not None:
            found["comparing" if comparison[1] else "compared"] += 1
        return handed_over(self, *arguments)

    DirectCalls.hand_over = hand_over  # type: ignore[method-assign, assignment]
    return found


def change_memory_of_a_call() -> None:
    """Flip a bit of the root's array when it lies in shared memory, and the others wait for it."""
    ah.init_process_group(timeout=20, verify=True)
    ah.barrier()
    me, x = ah.get_rank(), np.full(5, 1.0)
    flipping = threading.Thread(target=flip_once_posted, args=(x,))
    if me == 1:
        flipping.start()
    else:
        hear()
    try:
        ah.broadcast(x, 1)
    except ah.DataCorrupted as error:
        tell("error", text=str(error), ranks=error.ranks, link=error.link, seq=error.seq)
    if me == 1:
        flipping.join()
    x[...] = 1
    ah.all_reduce(x)
    tell("sum", sum=float(x[0]))
    ah.destroy_process_group()


def flip_once_posted(x: Any) -> None:
    """Change an array once a call of it waits: it has the interpreter lock until then."""
    engine: Any = ah.default_group().submitter.engine
    while engine.progress.operation != "broadcast":
        time.sleep(0)
    x.view(np.uint8)[3] ^= 4
    tell("flipped")


DIFFERING_CALLS = 20


def differ_in_a_result(calls_before: int, hosts: str = "") -> None:
    crc, change = result_check.load_checksum(), [0]
    result_check.load_checksum = lambda: lambda data, value=0: crc(data, value) ^ change[0]
    progress = count_progress()
    _join(hosts)
    me = ah.get_rank()
    x = np.zeros(1000, np.float32)
    for _ in range(calls_before):
        ah.all_reduce(x)
    change[0] = int(me == 1)
    for _ in range(DIFFERING_CALLS):
        x[...] = 1
        try:
            ah.all_reduce(x)
        except ah.DataCorrupted as error:
            tell("error", text=str(error), ranks=error.ranks, link=error.link, seq=error.seq)
    tell("progress", **progress)
    change[0] = 0
    x[...] = 1
    ah.all_reduce(x)
    tell("sum", sum=float(x[0]))
    ah.destroy_process_group()


def flip_a_bit(length: int, calls_before: int, retryable: bool, hosts: str = "") -> None:
    _join(hosts, retryable=retryable)
    me = ah.get_rank()
    x = np.zeros(length, np.float32)
    for _ in range(calls_before):
        ah.all_reduce(x)
    honest = digests._add_digest
    if me == 2:
        changed: list[LinkFrame] = []

        def is_due(frame: LinkFrame) -> bool:
            if changed in ([], [frame]):
                changed[:] = [frame]  # it is offered again where a link was full
            return changed == [frame]

        def stamped(frame, number, key):
            sent = whole(honest(frame, number, key))
            leaves = key._link[0] == me  # others have come, and are put back
            if leaves and len(sent) > min(4 * length, 100_000) and is_due((key._link, number)):
                sent = flipped(sent, [8 * len(sent) - 7])
            return [sent]

        digests._add_digest = stamped
        sign_other_payloads(is_due)
    x[...] = 1
    try:
        ah.all_reduce(x)
    except ah.DataCorrupted as error:
        tell("error", link=error.link, op=error.op, seq=error.seq, kept=bool((x == 1).all()))
    x[...] = 1
    ah.all_reduce(x)
    tell("sum", sum=float(x.sum()))
    ah.destroy_process_group()


def compare_digests() -> None:
    """Have the core make digests of a group's links, beside those that Python makes."""
    ah.init_process_group(timeout=20, verify=True)
    ah.all_reduce(np.ones(3))
    engine: Any = ah.default_group().submitter.engine
    mesh, me = engine._mesh, ah.get_rank()
    alike = []
    for peer, (_, state) in mesh._peer_links.items():
        key, header = LinkKey(mesh._secret, me, peer), bytes(range(HEADER_BYTES))
        for payload in (b"", bytes(1000)):
            made = state.compute_digest(5, header, payload)
            alike.append(made == key.compute_digest(5, header, payload))
    tell("done", alike=alike)
    ah.destroy_process_group()


def sign_other_payloads(is_due: Callable[[LinkFrame], bool]) -> None:
    """Have the native core send payloads in which a bit is not the one that was signed."""
    engine: Any = ah.default_group().submitter.engine
    mesh, me = engine._mesh, ah.get_rank()
    for peer, (verifying_key, state) in mesh._peer_links.items():

        def sign(number: int, header: memoryview, payload: memoryview, key: LinkKey) -> int:
            is_changed = len(payload) > 0 and is_due((key._link, number))
            other = flipped(bytes(payload), [8 * len(payload) - 7]) if is_changed else payload
            return key.compute_digest(number, header, other)

        if not isinstance(state, PlainLinkState):
            key = LinkKey(mesh._secret, me, peer)
            state.set_digesters(partial(sign, key=key), verifying_key.compute_digest, None, None)


def relay_changed_frames() -> None:
    ah.init_process_group(timeout=20, verify=True)
    honest = digests._add_digest
    ONE, TWO = struct.pack("<f", 1), struct.pack("<f", 2)

    def relayed(frame, number, *rest):  # by who sees all of a link, and no secret
        sent = bytearray(whole(honest(frame, number, *rest)))
        if ONE * 100 in sent[HEADER_BYTES:]:
            sent[HEADER_BYTES:] = sent[HEADER_BYTES:].replace(ONE, TWO)
            sent[46:48] = sent[54:56] = bytes(2)
            crc = zlib.crc32(sent, number)
            sent[46:48], sent[54:56] = struct.pack("<H", crc & 0xFFFF), struct.pack("<H", crc >> 16)
        return [bytes(sent)]

    digests._add_digest = relayed
    x = np.ones(1000, np.float32)
    tell("relayed", **failure(lambda: ah.all_reduce(x)), sums=np.unique(x).tolist())
    digests._add_digest = honest
    ah.barrier()
    ah.destroy_process_group()
