"""Groups that verify, on real ranks: over shared memory and over links."""

import pytest

from support.ranks.processes import Job

CALLS = """
from support.arrays.collective_cases import *
ah.init_process_group(timeout=20, verify=True)
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
"""

DIFFERENT = """
from allhands.engine import group_engine
ah.init_process_group(timeout=20, verify=True)
me = ah.get_rank()
honest = group_engine.compute_digest
if me == 1:
    group_engine.compute_digest = lambda native: honest(native) ^ 1
x = np.ones(1000, np.float32)
try:
    ah.all_reduce(x)
except ah.DataCorrupted as error:
    tell("error", text=str(error), ranks=error.ranks, link=error.link, seq=error.seq)
group_engine.compute_digest = honest
x[...] = 1
ah.all_reduce(x)
tell("sum", sum=float(x[0]))
ah.destroy_process_group()
"""

FLIPPED = """
from allhands.transport import digests
from allhands.transport.frame import whole
from allhands.testing.faults import flipped
ah.init_process_group(timeout=20, verify=True)
me = ah.get_rank()
honest = digests._add_digest
if me == 2:
    done = []

    def stamped(frame, number, key):
        sent = whole(honest(frame, number, key))
        if len(sent) > 100_000 and not done:
            done.append(True)
            sent = flipped(sent, [800_000])
        return [sent]

    digests._add_digest = stamped
x = np.ones(400_000, np.float32)
try:
    ah.all_reduce(x)
except ah.DataCorrupted as error:
    tell("error", link=error.link, op=error.op, seq=error.seq)
x[...] = 1
ah.all_reduce(x)
tell("sum", sum=float(x.sum()))
ah.destroy_process_group()
"""


RELAYED = """
import struct, zlib
from allhands.transport import digests
from allhands.transport.frame import HEADER_BYTES, whole
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
"""


@pytest.mark.parametrize("backend", ["auto", "socket", "grpc"])
def test_every_collective_passes_on_a_group_that_verifies(job: Job, backend: str) -> None:
    ranks = job(3, CALLS)
    for rank in ranks:
        done = rank.expect("done")
        assert done["wrong"] == []
        assert done["verify"] == [True, False, True]
        assert rank.ended() == 0, "".join(rank.errors)


@pytest.mark.parametrize("backend", ["auto", "socket"])
def test_a_result_unlike_the_others_is_named_on_every_rank(job: Job, backend: str) -> None:
    ranks = job(3, DIFFERENT)
    for rank in ranks:
        error = rank.expect("error")
        assert error["ranks"] == [1]
        assert (error["link"], error["seq"]) == (None, 1)
        assert "different results: rank 1, unlike the others" in error["text"]
        assert rank.expect("sum")["sum"] == 3.0
        assert rank.ended() == 0, "".join(rank.errors)


@pytest.mark.parametrize("backend", ["socket", "grpc"])
def test_a_bit_that_flips_on_a_link_names_it_on_every_rank(job: Job, backend: str) -> None:
    ranks = job(3, FLIPPED)
    links = set()
    for rank in ranks:
        error = rank.expect("error")
        links.add(tuple(error["link"]))
        assert (error["op"], error["seq"]) == ("all_reduce", 1)
        assert rank.expect("sum")["sum"] == 3.0 * 400_000
        assert rank.ended() == 0, "".join(rank.errors)
    [(start, _)] = links
    assert start == 2


@pytest.mark.parametrize("backend", ["socket", "grpc"])
def test_a_relay_on_the_path_cannot_change_data_without_being_found_out(job: Job) -> None:
    for rank in job(2, RELAYED):
        told = rank.expect("relayed")
        assert told["error"] == "DataCorrupted", told
        assert "(digest)" in told["text"]
        assert rank.ended() == 0, "".join(rank.errors)
