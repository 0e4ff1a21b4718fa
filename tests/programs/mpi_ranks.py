"""Ranks that are written for mpi4py, on the MPI of allhands."""

import itertools
import os
import signal
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from programs.protocol import hear, tell


def _start() -> Any:
    from allhands.mpi import MPI

    return MPI


def exchange_messages() -> None:
    """Messages with wildcards, of all kinds of sends, too long, taken by a probe."""
    MPI = _start()
    comm = MPI.COMM_WORLD
    rank, size = comm.rank, comm.size
    status = MPI.Status()
    if rank == 0:
        seen = {}
        for _ in range(1, size):
            got = np.empty(4)
            comm.Recv(got, MPI.ANY_SOURCE, MPI.ANY_TAG, status)
            assert status.tag == status.source + 10
            assert status.Get_count(MPI.DOUBLE) == 3
            seen[status.source] = got[:3].tolist()
        tell(what="received", seen=seen)
    else:
        comm.Send(np.full(3, float(rank)), 0, tag=rank + 10)
    comm.Barrier()
    right, left = (rank + 1) % size, (rank - 1) % size
    for nbytes in (0, 100, 5000, 3 << 20):
        mine, theirs = np.full(nbytes, rank, np.uint8), np.empty(nbytes + 1, np.uint8)
        requests = [comm.Irecv(theirs, left, 1), comm.Issend(mine, right, 1)]
        MPI.Request.Waitall(requests)
        assert (theirs[:nbytes] == left).all()
    obj = comm.sendrecv({"from": rank, "data": np.arange(5)}, right, 2, None, left, 2)
    assert obj["from"] == left
    request = comm.isend("taken", right, 3)
    message = comm.mprobe(left, 3)
    assert not comm.iprobe(left, 3), "a probed message is taken"
    assert message.recv() == "taken"
    request.wait()
    comm.Isend(np.arange(8), right, 4)
    try:
        comm.Recv(np.empty(2, np.int64), left, 4)
    except MPI.Exception as error:
        tell(what="truncated", code=error.Get_error_class() == MPI.ERR_TRUNCATE, text=str(error))
    column = np.arange(12.0).reshape(3, 4)
    vector = MPI.DOUBLE.Create_vector(3, 1, 4).Commit()
    got = np.empty(3)
    comm.Sendrecv([column, 1, vector], right, 5, got, left, 5)
    assert got.tolist() == [0.0, 4.0, 8.0]
    tell(what="done")


def stream_arrays() -> None:
    """Blocking sends of one rank to the next, of all sizes and types, in all ways of both ends."""
    MPI = _start()
    comm = MPI.COMM_WORLD
    rank, status = comm.rank, MPI.Status()
    random = np.random.default_rng(7)
    types = [np.int8, np.float64, np.complex128, np.bool_, np.uint16]
    for at in range(300):
        count, tag = int(random.choice([0, 1, 40, 54, 55, 433, 3000, 90_000])), at % 5
        data = (random.random(count) * 100).astype(types[at % 5])
        if rank == 0:
            send = comm.Ssend if at % 7 == 0 else comm.Send
            send(data, 1, tag)
        elif rank == 1:
            got = np.full(count + 3, 1, data.dtype)
            source = MPI.ANY_SOURCE if at % 2 else 0
            wanted = MPI.ANY_TAG if at % 3 == 0 else tag
            if at % 4 == 0:
                comm.Recv(got, source, wanted, status)
                assert (status.source, status.tag) == (0, tag)
                assert status.Get_count(MPI.BYTE) == data.nbytes
            elif at % 9 == 0:
                comm.Irecv(got, source, wanted).Wait()
            else:
                comm.Recv(got, source, wanted)
            assert (got[:count] == data).all(), at
            assert (got[count:] == 1).all(), "nothing behind the message is touched"
    order = (5, 6, 7)
    for count in (3, 3000):
        if rank == 0:
            requests = [comm.Isend(np.full(count, tag), 1, tag) for tag in order]
            MPI.Request.Waitall(requests)
        else:
            for tag in reversed(order):
                got = np.empty(count, np.int64)
                comm.Recv(got, 0, tag)
                assert (got == tag).all()
    for count in (10, 1000):
        if rank == 0:
            comm.Send(np.ones(count), 1, 8)
        else:
            with pytest.raises(MPI.Exception, match="room for 8 bytes"):
                comm.Recv(np.empty(1), 0, 8)
    comm.Barrier()
    if rank == 0:
        comm.Send(np.ones(2), 1, 9)
        with pytest.raises(BufferError, match="not contiguous"):
            comm.Send(np.arange(6)[::2], 1, 9)
    else:
        kept = np.zeros(2)
        kept.flags.writeable = False
        with pytest.raises(BufferError, match="must not be written"):
            comm.Recv(kept, 0, 9)
        comm.Recv(got := np.empty(2), 0, 9)
        assert got.all()
        assert not kept.any()
    tell(what="done")


def call_collectives() -> None:
    """Collectives on buffers in place, of own operations and datatypes, begun and awaited."""
    MPI = _start()
    comm = MPI.COMM_WORLD
    rank, size = comm.rank, comm.size
    x = np.array([rank + 1.0, -rank])
    y = np.empty(2)
    comm.Allreduce(x, y)
    assert y.tolist() == [size * (size + 1) / 2, -size * (size - 1) / 2]
    comm.Allreduce(MPI.IN_PLACE, x, MPI.MAX)
    assert x.tolist() == [float(size), 0.0]

    def join(left: Any, right: Any, datatype: Any) -> None:
        digits = np.frombuffer(right, np.int64)
        digits[:] = np.frombuffer(left, np.int64) * 10 + digits

    op = MPI.Op.Create(join, commute=False)
    number = np.array([rank + 1])
    joined = np.empty_like(number)
    comm.Allreduce(number, joined, op)
    assert joined[0] == int("".join(str(one + 1) for one in range(size))), joined
    comm.Scan(number, joined, op)
    assert joined[0] == int("".join(str(one + 1) for one in range(rank + 1)))
    op.Free()
    pair = np.array([(abs(rank - 1), rank)], dtype=[("v", "i4"), ("i", "i4")])
    least = np.empty_like(pair)
    comm.Allreduce([pair, MPI.INT_INT], [least, MPI.INT_INT], MPI.MINLOC)
    assert least[0].tolist() == ((0, 1) if size > 1 else (1, 0))
    counts = [one + 1 for one in range(size)]
    everything = np.empty(sum(counts), np.int32)
    comm.Allgatherv(np.full(rank + 1, rank, np.int32), [everything, counts])
    assert everything.tolist() == [one for one in range(size) for _ in range(one + 1)]
    # A receive that is posted does not keep a collective from its end, nor a large send.
    large = np.empty(3 << 20, np.uint8)
    receive = comm.Irecv(large, (rank - 1) % size, 9)
    barrier = comm.Ibarrier()
    comm.Send(np.full(3 << 20, rank, np.uint8), (rank + 1) % size, 9)
    comm.Bcast(y, root=size - 1)
    MPI.Request.Waitall([receive, barrier])
    assert (large == (rank - 1) % size).all()
    halves = comm.Split(rank % 2, -rank)
    assert halves.allgather(rank) == sorted(
        (one for one in range(size) if one % 2 == rank % 2), reverse=True
    )
    grid = comm.Create_cart([size], [True])
    came = np.empty((2, 1), np.int64)
    grid.Neighbor_allgather(np.array([rank]), came)
    assert came.ravel().tolist() == [(rank - 1) % size, (rank + 1) % size]
    if size > 1:
        leader = max(one for one in range(size) if one % 2 != rank % 2)
        other = halves.Create_intercomm(0, comm, leader, 1)
        assert other.remote_size == size - halves.size
        total = np.empty(1, np.int64)
        other.Allreduce(np.array([rank]), total)
        assert total[0] == sum(one for one in range(size) if one % 2 != rank % 2)
        merged = other.Merge(high=bool(rank % 2))
        assert merged.allgather(rank % 2) == sorted(one % 2 for one in range(size))
        for one in (merged, other):
            one.Free()
    for one in (grid, halves):
        one.Free()
    tell(what="done")


def share_windows(folder: str) -> None:
    """Windows of passive targets, shared memory, and a file that all write to."""
    MPI = _start()
    comm = MPI.COMM_WORLD
    rank, size = comm.rank, comm.size
    counter = np.zeros(1 if rank == 0 else 0, np.int64)
    window = MPI.Win.Create(counter, 8, comm=comm)
    before = np.empty(1, np.int64)
    taken = []
    if rank:  # rank 0 computes, and calls nothing meanwhile
        for _ in range(5):
            window.Lock(0, MPI.LOCK_SHARED)
            window.Fetch_and_op(np.array([1]), before, 0, 0, MPI.SUM)
            window.Unlock(0)
            taken.append(int(before[0]))
        tell(what="taken", numbers=taken)
    hear()
    comm.Barrier()
    if rank == 0:
        assert counter[0] == 5 * (size - 1)
    if rank == size - 1:
        window.Lock(0)
        window.Put(np.arange(4), 0, (0, 4, MPI.LONG))
        try:
            window.Unlock(0)
        except MPI.Exception as error:
            tell(what="refused", code=error.Get_error_class() == MPI.ERR_RMA_RANGE, text=str(error))
    comm.Barrier()
    window.Free()
    shared = MPI.Win.Allocate_shared(8, 8, comm=comm)
    own = np.frombuffer(shared.tomemory(), np.int64)
    own[0] = rank * 100
    comm.Barrier()
    memory, unit = shared.Shared_query((rank + 1) % size)
    assert (np.frombuffer(memory, np.int64)[0], unit) == ((rank + 1) % size * 100, 8)
    comm.Barrier()
    shared.Free()
    path = str(Path(folder) / "numbers")
    file = MPI.File.Open(comm, path, MPI.MODE_CREATE | MPI.MODE_RDWR)
    stripe = MPI.INT64_T.Create_vector(4, 1, size).Commit()
    file.Set_view(rank * 8, MPI.INT64_T, stripe)
    file.Write_all(np.arange(4) * size + rank)
    file.Sync()
    file.Set_view(0, MPI.INT64_T)
    everything = np.empty(4 * size, np.int64)
    file.Read_at_all(0, everything)
    assert everything.tolist() == list(range(4 * size))
    file.Close()
    with pytest.raises(MPI.Exception) as caught:
        MPI.File.Open(comm, path + ".absent", MPI.MODE_RDONLY)
    assert caught.value.Get_error_class() == MPI.ERR_NO_SUCH_FILE
    tell(what="done")


def open_windows(hosts: int, is_new: bool) -> None:
    """Windows of memory that is new, or the program's: all that they do, and what is refused."""
    MPI = _start()
    comm = MPI.COMM_WORLD
    rank, size = comm.rank, comm.size
    if hosts > 1:
        from allhands.mpi.communicators import intracomm

        vars(intracomm)["name_host"] = lambda: f"host {rank % hosts}"
        with pytest.raises(MPI.Exception, match="on several hosts"):
            MPI.Win.Allocate_shared(8, 8, comm=comm)
    if is_new:
        window = MPI.Win.Allocate(32 if rank else 64, 8, comm=comm)
        own = np.frombuffer(window.tomemory(), np.int64)
    else:
        own = np.zeros(4 if rank else 8, np.int64)
        window = MPI.Win.Create(own, 8, comm=comm)
    has_thread = "allhands mpi progress" in [one.name for one in threading.enumerate()]
    assert has_thread == (hosts > 1)
    assert own.tolist() == [0] * (4 if rank else 8)
    assert memoryview(window).nbytes == own.nbytes
    comm.Barrier()
    number, one = np.zeros(1, np.int64), np.ones(1, np.int64)
    for _ in range(30):  # alone with a lock, and with nothing else
        window.Lock(0)
        window.Get(number, 0, 0)
        window.Flush(0)
        window.Put(number + 1, 0, 0)
        window.Unlock(0)
    comm.Barrier()
    taken = []
    window.Lock_all()
    for _ in range(30):
        window.Fetch_and_op(one, number, 0, 1)
        window.Flush(0)
        taken.append(int(number[0]))
        window.Accumulate(np.array([rank, 1]), 0, (2, 2, MPI.INT64_T))
    while True:  # each rank once, in the order of ranks
        window.Compare_and_swap(np.array([rank + 1]), np.array([rank]), number, 0, 4)
        window.Flush(0)
        if number[0] == rank:
            break
    comm.Barrier()  # all hold all locks meanwhile
    window.Unlock_all()
    assert sorted(itertools.chain.from_iterable(comm.allgather(taken))) == list(range(30 * size))
    if rank == 0:
        window.Lock(0)
        sums = [30 * size, 30 * size, 30 * sum(range(size)), 30 * size, size]
        assert own[:5].tolist() == sums
        comm.Barrier()
        own[5] = 77
        window.Unlock(0)
    else:
        comm.Barrier()
        window.Lock(0)  # in vain, until rank 0 gives it back
        window.Get(number, 0, 5)
        window.Unlock(0)
        assert number[0] == 77
    right, left = (rank + 1) % size, (rank - 1) % size
    world = comm.Get_group()
    window.Post(world.Incl([left]))
    window.Start(world.Incl([right]))
    odd = MPI.INT64_T.Create_vector(2, 1, 2).Commit()
    window.Put(np.array([10 + rank, 20 + rank]), right, (0, 1, odd))
    window.Complete()
    window.Wait()
    assert own[[0, 2]].tolist() == [10 + left, 20 + left]
    window.Fence()
    request = window.Rget_accumulate(one, number, left, 0, MPI.MAX)
    request.Wait()
    assert number[0] == 10 + (left - 1) % size
    window.Fence()
    window.Lock(1)
    window.Put(np.arange(2), 1, 3)
    with pytest.raises(MPI.Exception, match="of a buffer of 32 bytes") as caught:
        window.Unlock(1)
    assert caught.value.Get_error_class() == MPI.ERR_RMA_RANGE
    comm.Barrier()
    window.Free()
    tell(what="done")


def die_with_a_lock() -> None:
    """Rank 1 dies with the lock of rank 0, for which others wait."""
    MPI = _start()
    comm = MPI.COMM_WORLD
    window = MPI.Win.Allocate(8, 8, comm=comm)
    other = MPI.Win.Create(np.zeros(1), 8, comm=comm)
    if comm.rank == 1:
        window.Lock(0)
    comm.Barrier()
    if comm.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        window.Lock(0)
    except MPI.Exception as error:
        tell(what="lost", code=error.Get_error_class() == MPI.ERR_PROC_FAILED, text=str(error))
    other.Put(np.ones(1), 1)
    with pytest.raises(MPI.Exception) as caught:
        other.Flush(1)
    assert caught.value.Get_error_class() == MPI.ERR_PROC_FAILED
    tell(what="lost, too")
    hear()
    os._exit(0)


def lose_one() -> None:
    """Rank 1 dies; others wait for it, and go on without it."""
    MPI = _start()
    comm = MPI.COMM_WORLD.Dup()
    rank = comm.rank
    comm.Shrink().Free()  # nothing is lost yet
    assert comm.sendrecv(rank, (rank + 1) % 3, 1, None, (rank - 1) % 3, 1) == (rank - 1) % 3
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        comm.Recv(np.empty(1), 1, 7)
    except MPI.Exception as error:
        tell(what="lost", code=error.Get_error_class() == MPI.ERR_PROC_FAILED, text=str(error))
    pending = comm.Irecv(np.empty(1), 2 - rank, 9)
    for call in (comm.Barrier, lambda: comm.Send(np.zeros(1 << 20), 1)):
        with pytest.raises(MPI.Exception) as caught:
            call()
        assert caught.value.Get_error_class() == MPI.ERR_PROC_FAILED
    pending.Cancel()
    pending.Wait()
    comm.Revoke()
    assert comm.Is_revoked()
    assert (comm.Get_rank(), comm.Get_size()) == (rank, 3)
    rest = comm.Shrink()
    neighbour = 1 - rest.rank
    assert rest.sendrecv(rank, neighbour, 1, None, neighbour, 1) == rest._ranks[neighbour]
    again = rest.Dup()
    rest.Free()
    assert again.sendrecv(rank, neighbour, 1, None, neighbour, 1) == again._ranks[neighbour]
    tell(what="went on", sum=again.allreduce(rank), size=again.size)
    MPI.Finalize()


def differ() -> None:
    """Ranks make different calls."""
    MPI = _start()
    comm = MPI.COMM_WORLD
    try:
        if comm.rank == 0:
            comm.Bcast(np.zeros(4), root=0)
        else:
            comm.Allreduce(np.zeros(4), np.zeros(4))
    except MPI.Exception as error:
        tell(what="mismatch", text=str(error))
    hear()  # The other rank may still be asking for the call of this one.
    os._exit(0)


def wait_for_nobody() -> None:
    """A receive that nobody sends to ends in time."""
    MPI = _start()
    comm = MPI.COMM_WORLD
    if comm.rank == 0:
        try:
            comm.Recv(np.empty(1), 1, 42)
        except MPI.Exception as error:
            tell(what="late", text=str(error))
    hear()
    os._exit(0)


def receive_on_threads() -> None:
    """Several threads receive at once, each its own messages."""
    MPI = _start()
    comm = MPI.COMM_WORLD
    rank, size = comm.rank, comm.size
    got: dict[int, list[int]] = {}

    def receive(tag: int) -> None:
        got[tag] = [comm.recv(source=(rank - 1) % size, tag=tag) for _ in range(50)]

    threads = [threading.Thread(target=receive, args=[tag]) for tag in range(4)]
    for thread in threads:
        thread.start()
    for number in range(50):
        for tag in (3, 1, 0, 2):
            comm.send(number * 10 + tag, (rank + 1) % size, tag)
    for thread in threads:
        thread.join()
    assert got == {tag: [number * 10 + tag for number in range(50)] for tag in range(4)}
    tell(what="done")


def serve_on_a_thread() -> None:
    """A thread of rank 0 answers the others, and its own rank, until it is told to end."""
    MPI = _start()
    comm = MPI.COMM_WORLD.Dup()
    asked: list[int] = []

    def serve() -> None:
        question, answer, status = np.empty(1, np.int64), np.empty(1, np.int64), MPI.Status()
        while True:
            comm.Recv(question, MPI.ANY_SOURCE, MPI.ANY_TAG, status)
            if status.tag == 1:
                return
            asked.append(status.source)
            answer[0] = question[0] + 1
            comm.Ssend(answer, status.source, 2)

    server = threading.Thread(target=serve)
    if comm.rank == 0:
        server.start()
    got = np.empty(1, np.int64)
    for number in range(20):
        comm.Ssend(np.array([number]), 0, 0)
        comm.Recv(got, 0, 2)
        assert got[0] == number + 1
    comm.Barrier()
    if comm.rank == 0:
        comm.Ssend(np.empty(0, np.int64), 0, 1)
        server.join()
        assert sorted(asked) == sorted(list(range(comm.size)) * 20)
    tell(what="done")


def mix_ways() -> None:
    """Collectives of which each rank goes another way, with buffers said in all ways."""
    MPI = _start()
    comm = MPI.COMM_WORLD
    rank, size = comm.rank, comm.size
    unsent = np.empty(1)
    for turn in range(size + 1):
        # A rank that has posted a receive makes no direct calls; in the last turn all do.
        posted = comm.Irecv(unsent, rank, 99) if rank == turn else None
        for way in range(4):
            _call_all(MPI, comm, way + rank)
        if posted is not None:
            posted.Cancel()
            posted.Wait()
    # MPI compares numbers of elements, and no shapes.
    x = np.full((2, 2) if rank else 4, 1.0)
    comm.Allreduce(MPI.IN_PLACE, x)
    assert x.ravel().tolist() == [size] * 4
    for given, said in (
        ((np.ones(2), np.empty(3)), "2 elements, and recvbuf 3"),
        (([np.ones(2), 3, MPI.DOUBLE], np.empty(3)), "to byte 24 of a buffer of 16 bytes"),
        ((np.ones(1, np.float32), np.empty(1)), "elements of"),
    ):
        with pytest.raises((ValueError, MPI.Exception), match=said):
            comm.Allreduce(*given)
    counts = [1] * (size - 1) + [size]
    for spec, said in (
        ([np.empty(2 * size), counts], f"rank 0 sent 16 bytes, and there is room for {8}"),
        ([np.empty(1), counts], "of a buffer of 8 bytes"),
        ([np.empty(2 * size), [-1] * size], "negative|byte"),
        ([np.empty(2 * size), [1] * (size + 1)], f"expecting {size} items"),
    ):
        with pytest.raises((ValueError, MPI.Exception), match=said):
            comm.Allgatherv(np.ones(2 if "sent" in said else 1), spec)
        comm.Barrier()
    parts = [np.ones(2 * size), [2] * size] if rank == 0 else None
    with pytest.raises(MPI.Exception, match="rank 0 sent 16 bytes, and there is room for 8"):
        comm.Scatterv(parts, np.empty(1), 0)
    for given, said in (
        ((np.ones(size), np.empty(1), [2] * size), "recvbuf has 1 elements"),
        ((np.ones(size - 1), np.empty(1), [1] * size), "sendbuf has"),
        ((np.ones(size), np.empty(1), [1] * (size - 1) + [-1]), "negative|recv|elements"),
        ((np.ones(size, np.float32), np.empty(1), [1] * size), "different datatypes"),
    ):
        with pytest.raises((ValueError, MPI.Exception), match=said):
            comm.Reduce_scatter(*given)
    tell(what="done")


def _call_all(MPI: Any, comm: Any, way: int) -> None:
    rank, size = comm.rank, comm.size

    def give(array: Any, blocks: int = 1) -> Any:
        count = array.size // blocks
        match way % 4:
            case 0:
                return array
            case 1:
                return [array, count, MPI.DOUBLE]
            case 2:
                return (memoryview(array), MPI.DOUBLE)
            case _:
                return [array, (count, 0), "d"]

    first, last = 0, size - 1
    own, total = np.array([rank + 1.0, 10.0 * rank]), size * (size + 1) / 2
    tens = 10.0 * (total - size)
    everybody = [one for at in range(size) for one in (at + 1.0, 10.0 * at)]
    out, every = np.zeros(2), np.zeros(2 * size)
    comm.Barrier()
    data = own.copy() if rank == last else out
    comm.Bcast(give(data), last)
    assert data.tolist() == [last + 1.0, 10.0 * last]
    comm.Allgather(give(own), give(every, size))
    assert every.tolist() == everybody
    every[: 2 * rank], every[2 * rank + 2 :] = 0, 0
    comm.Allgather(MPI.IN_PLACE, give(every, size))
    assert every.tolist() == everybody
    every[:] = 0
    comm.Gather(give(own), give(every, size) if rank == last else None, last)
    assert every.tolist() == (everybody if rank == last else [0] * 2 * size)
    brought = give(np.array(everybody), size) if rank == first else None
    comm.Scatter(brought, give(out), first)
    assert out.tolist() == own.tolist()
    blocks = np.repeat(rank + np.arange(size) * 100.0, 2)
    comm.Alltoall(give(blocks, size), give(every, size))
    assert every.tolist() == np.repeat(np.arange(size) + rank * 100.0, 2).tolist()
    comm.Alltoall(MPI.IN_PLACE, give(blocks, size))
    assert blocks.tolist() == every.tolist()
    out[:] = -1.0
    comm.Reduce(give(own), give(out) if rank == first else None, MPI.SUM, first)
    assert out.tolist() == ([total, tens] if rank == first else [-1.0, -1.0])
    comm.Allreduce(give(own), give(out), MPI.SUM)
    assert out.tolist() == [total, tens]
    comm.Reduce_scatter_block(give(np.tile(own, size), size), give(out), MPI.SUM)
    assert out.tolist() == [total, tens]
    comm.Scan(give(own), give(out), MPI.SUM)
    assert out[0] == (rank + 1) * (rank + 2) / 2
    out[:] = -1.0
    comm.Exscan(give(own), give(out), MPI.SUM)
    assert out[0] == (rank * (rank + 1) / 2 if rank else -1.0)
    assert own.tolist() == [rank + 1.0, 10.0 * rank], "what a rank brings is only read"
    assert comm.bcast({"root": rank}, last) == {"root": last}
    _call_all_of_various_sizes(MPI, comm, way)


def _call_all_of_various_sizes(MPI: Any, comm: Any, way: int) -> None:
    rank, size = comm.rank, comm.size

    def give(array: Any, counts: list[int], displs: list[int]) -> Any:
        match way % 4:
            case 0:
                return [array, counts, displs, MPI.DOUBLE]
            case 1:
                return [array, (counts, displs), MPI.DOUBLE]
            case 2:
                return (memoryview(array), (np.array(counts), tuple(displs)), MPI.DOUBLE)
            case _:
                return [array, (counts, displs), "d"]

    own, last = np.full(rank + 1, rank + 0.5), size - 1
    counts = [one + 1 for one in range(size)]
    # With a gap before each block, which stays as it is.
    displs = [sum(counts[:one]) + one + 1 for one in range(size)]
    wanted = np.concatenate([[-1.0, *[one + 0.5] * (one + 1)] for one in range(size)])
    every = np.full(sum(counts) + size, -1.0)
    comm.Allgatherv(own, give(every, counts, displs))
    assert every.tolist() == wanted.tolist()
    every[:] = -1.0
    every[displs[rank] : displs[rank] + rank + 1] = own
    comm.Allgatherv(MPI.IN_PLACE, give(every, counts, displs))
    assert every.tolist() == wanted.tolist()
    every[:] = -1.0
    comm.Gatherv(own, give(every, counts, displs) if rank == last else None, last)
    assert every.tolist() == (wanted if rank == last else np.full_like(wanted, -1.0)).tolist()
    # Rank a gives a + b elements to rank b.
    amounts, starts = [rank + one for one in range(size)], [0] * size
    for one in range(1, size):
        starts[one] = starts[one - 1] + amounts[one - 1]
    brought = np.concatenate([np.full(rank + one, 10.0 * rank + one) for one in range(size)])
    came = np.full(sum(amounts), -1.0)
    comm.Alltoallv(give(brought, amounts, starts), give(came, amounts, starts))
    assert came.tolist() == [10.0 * one + rank for one in range(size) for _ in range(one + rank)]
    packed = np.empty(sum(counts))
    comm.Allgatherv(own, [packed, counts])
    assert packed.tolist() == [one + 0.5 for one in range(size) for _ in range(one + 1)]
    # A receiver may have room for more than comes.
    room = np.full(rank + 2, -1.0)
    comm.Scatterv(give(wanted, counts, displs) if rank == last else None, room, last)
    assert room.tolist() == [*own, -1.0]
    kept = MPI.IN_PLACE if rank == last else room
    comm.Scatterv(give(2 * wanted, counts, displs) if rank == last else None, kept, last)
    assert room.tolist() == [*(own if rank == last else 2 * own), -1.0]
    brought = np.arange(float(sum(counts))) * (rank + 1)
    shares = np.arange(float(sum(counts))) * (size * (size + 1) / 2)
    start = sum(counts[:rank])
    out = np.full(rank + 1, -1.0)
    comm.Reduce_scatter(brought, out, np.array(counts) if way % 2 else counts, MPI.SUM)
    assert out.tolist() == shares[start : start + rank + 1].tolist()
    assert brought.tolist() == (np.arange(float(sum(counts))) * (rank + 1)).tolist()
    comm.Reduce_scatter(MPI.IN_PLACE, brought, counts, MPI.SUM)
    assert brought[: rank + 1].tolist() == out.tolist()


def await_posted() -> None:
    """Receives that are begun and awaited, as the next message ends them or another one comes."""
    MPI = _start()
    comm = MPI.COMM_WORLD
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    status = MPI.Status()
    for count in (3, 100, 5000):
        got, other = np.zeros(count + 1), np.zeros(count)
        for wanted in (left, MPI.ANY_SOURCE):
            receive = comm.Irecv(got, wanted, 1)
            comm.Send(np.full(count, 2.0), right, 1)
            receive.Wait(status)
            assert (status.source, status.tag) == (left, 1)
            assert status.Get_count(MPI.DOUBLE) == count
            assert got.tolist() == [2.0] * count + [0.0]
        # Several at once, whose messages come in another order, two of them alike.
        tags = (4, 5, 4, 6)
        several = [np.zeros(count) for _ in tags]
        receives = [comm.Irecv(one, left, tag) for one, tag in zip(several, tags, strict=True)]
        sends = [comm.Isend(np.full(count, 10.0 * at), right, tags[at]) for at in (3, 0, 1, 2)]
        receives[2].Wait()
        assert several[2].tolist() == [20.0] * count, "the first message is for the first receive"
        MPI.Request.Waitall([*receives, *sends])
        assert [one.tolist() for one in several] == [[10.0 * at] * count for at in range(4)]
        # What comes first is for nobody yet: it is kept, and the receive goes on.
        receive = comm.Irecv(got, left, 1)
        sends = [comm.Isend(np.full(count, float(tag)), right, tag) for tag in (7, 1)]
        receive.Wait()
        assert got[:count].tolist() == [1.0] * count
        comm.Recv(other, left, 7)
        assert other.tolist() == [7.0] * count
        MPI.Request.Waitall(sends)
        # Too much for the receive: an error, and the next message is as it was.
        receive = comm.Irecv(np.empty(1), left, 2)
        send = comm.Isend(np.ones(count), right, 2)
        with pytest.raises(MPI.Exception) as raised:
            receive.Wait()
        assert raised.value.Get_error_class() == MPI.ERR_TRUNCATE
        send.Wait()
        comm.Sendrecv(np.full(count, 3.0), right, 3, other, left, 3, status)
        assert status.Get_count(MPI.DOUBLE) == count
        assert other.tolist() == [3.0] * count
    comm.Barrier()
    # What cannot be received into is refused before anything is sent.
    locked = np.zeros(1)
    locked.flags.writeable = False
    with pytest.raises((BufferError, MPI.Exception)):
        comm.Sendrecv(np.ones(1), right, 5, locked, left, 5)
    comm.Barrier()
    assert not comm.Iprobe(left, 5)
    tell(what="done")
