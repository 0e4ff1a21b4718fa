"""Choice between shared memory and links for calls, and the account in explain()."""

import ctypes
import os

import numpy as np

import allhands as ah
from programs.faults import Faults
from programs.protocol import failure, tell
from programs.shared_segments import shared, variant
from support.arrays.collective_cases import EVERY, case


def explain_calls() -> None:
    ah.init_process_group(timeout=30)
    n = ah.get_world_size()
    me = ah.get_rank()
    faults = Faults()
    ah.all_reduce(np.ones(1))  # from here on all know how they can reach each other

    def said(name, length, make=np.empty, **more):
        one = case(name, me, n, length, make=make, **more)
        one.run(ah)
        faults.note(one.wrong())
        return variant()

    tell("small", said=[said(name, 2) for name in EVERY])
    tell("middle", said=[said(name, 4096) for name in EVERY if name != "barrier"])
    tell("large", said=[said(name, 1 << 18) for name in EVERY if name != "barrier"])
    tell("shared", said=[said(name, 1 << 18, shared) for name in EVERY if name != "barrier"])
    work = ah.all_reduce(np.ones(2), async_op=True)
    work.wait()
    tell("work", said=work.explain())
    tell("done", faults=faults)
    ah.destroy_process_group()


def explain_links() -> None:
    ah.init_process_group(timeout=30)
    faults = Faults()
    ah.all_reduce(np.ones(4))
    work = ah.all_reduce(np.ones(4), async_op=True)
    work.wait()
    x = ah.empty(4)
    x[:] = 1
    ah.all_reduce(x)
    tell("said", said=[variant(), ah.default_group().explain(), work.explain(), x.tolist()])
    tell("done", faults=faults)
    ah.destroy_process_group()


def obey_limits() -> None:
    ah.init_process_group(timeout=30)
    n = ah.get_world_size()
    me = ah.get_rank()
    faults = Faults()
    ah.all_reduce(np.ones(1))
    said = []
    for name, nbytes in (("all_reduce", 500), ("all_reduce", 1000), ("broadcast", 100_000)):
        one = case(name, me, n, nbytes // 4)
        one.run(ah)
        faults.note(one.wrong(), name, nbytes)
        said.append(variant())
    tell("said", said=said)
    tell("done", faults=faults)
    ah.destroy_process_group()


def differ_in_limits() -> None:
    ah.init_process_group(timeout=30)
    n = ah.get_world_size()
    me = ah.get_rank()
    faults = Faults()
    for seed, name in enumerate(EVERY):
        one = case(name, me, n, 5_000, seed=seed, make=shared)
        one.run(ah)
        faults.note(one.wrong(), name)
    tell("said", said=ah.default_group().explain())
    pair = ah.new_group([1, 2])
    if me:
        x = np.ones(3)
        ah.all_reduce(x, group=pair)
        faults.note(not (x == 2).all(), x)
        tell("pair", said=pair.explain())
    tell("done", faults=faults)
    ah.destroy_process_group()


def insist_on_a_backend(backend: str) -> None:
    tell("told", **failure(lambda: ah.init_process_group(timeout=5, backend=backend)))
    os._exit(0)


def share_across_namespaces() -> None:
    if os.environ["RANK"] == "1":
        door = os.open("/proc/self/ns/net", os.O_RDONLY)
        libc = ctypes.CDLL(None, use_errno=True)
        assert libc.unshare(0x40000000) == 0, os.strerror(ctypes.get_errno())  # CLONE_NEWNET
        from allhands.shm import arena

        key = arena.compute_host_key()
        assert libc.setns(door, 0) == 0, os.strerror(ctypes.get_errno())
        assert key != arena.compute_host_key()
        arena.compute_host_key = lambda: key  # as seen from there; the sockets must stay reachable
    backend = os.environ["WANTED"]
    said = failure(lambda: ah.init_process_group(timeout=10, backend=backend))
    if said["error"]:
        tell("refused", **said)
        os._exit(0)
    x = np.ones(3)
    ah.all_reduce(x)
    tell("done", x=x.tolist(), said=ah.default_group().explain())
    ah.destroy_process_group()
