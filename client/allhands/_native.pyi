"""The native core, as Python sees it; absent where it could not be built."""

from collections.abc import Callable
from datetime import timedelta
from ssl import MemoryBIO, SSLObject
from types import CodeType
from typing import Any, Literal, NoReturn, Self

import numpy as np
from numpy.typing import NDArray

from allhands.collectives.core_call import Reading
from allhands.collectives.signature import CallSignature
from allhands.engine.work.shm_work import ShmReadWork, ShmWorkContext
from allhands.engine.work.shm_work import ShmWork as ShmWork
from allhands.engine.work.work import Work
from allhands.futures import Future
from allhands.shm.failures import CallFailure, MessageFailure

MAX_RANKS: int
"""Size of the largest group that one communicator serves."""
INSTRUCTIONS: Literal["avx2", "baseline"]
"""Instruction set of the folds on this processor."""
OUTCOMES: tuple[str, ...]
"""Names of outcomes of calls, by their numbers in the core."""
KINDS: tuple[str, ...]
"""Names of the collectives that the core carries out."""
STARTS_KEPT: int
"""Start times that are kept between two heartbeats."""
HEAD_BYTES: int
"""Size of the directory at the beginning of a segment."""

Source = tuple[str, int, str]
"""File, line and function."""

Buffers = tuple[bytes | NDArray[Any], ...]
"""A message of bytes, buffer after buffer; an array is C-contiguous."""
Messages = Buffers | list[Buffers] | dict[int, Buffers]
"""One for all ranks, one for each, or some by their ranks; that for the own rank is not sent."""

CallRow = tuple[
    int,  # sequence
    str,  # operation
    np.dtype[Any] | CallSignature | None,
    int,  # count
    int,  # bytes that this rank brought
    int,  # reduce op
    int,  # root
    int,  # started, ns
    int,  # finished; 0: not yet
    int,  # outcome: its place in `recorder.record.OUTCOMES`
    str,  # variant
    bool,  # from the queue: when and where it was made is recorded there
    Source | None,
    str | None,  # label
    int,  # ranks that it waits for
    tuple[int, ...] | None,  # shape; None: ranks may differ in it
]
MessageRow = tuple[
    bool,  # receives
    np.dtype[Any],
    int,  # count
    int,  # bytes
    int,  # the other's place in the group; -1: whoever sends
    int,  # tag
    int,  # started, ns
    int,  # finished; 0: not yet
    str,  # outcome, as of `Message`
    str,  # way
    Source | None,
    str | None,  # label
]

Limits = tuple[int, int, int]
"""(slot_max, chunk, attach_min) in bytes; attach_min -1: never."""

def supports(op: int, type: int, /) -> bool: ...
def fold(
    op: int, type: int, out: NDArray[Any], ins: tuple[NDArray[Any], ...], divisor: int, /
) -> None:
    """Write ins[0] op ins[1] op ... to `out`, which may be one of them; all contiguous."""

def copy(to: NDArray[Any], source: NDArray[Any], once: bool, /) -> None: ...
def allocate_bytes(nbytes: int, /) -> NDArray[np.uint8]:
    """Return a new array of any content, in memory that was used before if possible."""

def view_dlpack(exchange: object, tensor: object, /) -> NDArray[Any] | None:
    """Return a writable, C-contiguous array over a tensor of DLPack in host memory.

    None: not contiguous, empty, complex, of a dtype without kernels or of too many dimensions; or
    not exported. The array keeps the tensor alive.

    Args:
        exchange: `__dlpack_c_exchange_api__` of the tensor's type.
    """

def view_memory(
    owner: object, address: int, shape: tuple[int, ...], dtype: np.dtype[Any], /
) -> NDArray[Any]:
    """Return a writable, C-contiguous array over memory that `owner` keeps alive.

    Raises:
        TypeError: of elements that are Python objects.
        ValueError: there are elements, and no memory.
    """

def view_spec(spec: object, written: bool, as_bytes: bool, blocks: int, /) -> NDArray[Any] | None:
    """Return a 1-D array over the elements that a buffer specification of MPI names.

    It has the dtype of the elements, or is one of bytes. A count is that of one of so many equal
    blocks. None: the specification is to be read with care.
    """

def copy_spec(spec: object, array: NDArray[Any], /) -> bool:
    """Copy the elements of a buffer specification to an array of as many such elements.

    False: nothing has happened; they are others or overlap, or the specification is to be read
    with care.
    """

def default_limits(size: int, /) -> Limits:
    """Return what was measured to be best for a group of `size` ranks."""

def skip_frames_of(package: str, but: str, /) -> None:
    """Say what the files of this package begin with, and which of those are not meant."""

def also_skip_frames_of(prefix: str, /) -> None:
    """Say what other files begin with that are not meant; ValueError: there are too many."""

def find_caller() -> tuple[CodeType | None, int]:
    """Return the code of the innermost frame outside of this package, and where it is in there."""

def area_bytes(size: int, limits: Limits, /) -> int:
    """Return how much of each rank's segment a group of `size` ranks takes."""

def is_in_gate() -> bool:
    """Say whether this thread is in a call over links that has borrowed the event loop."""

class TlsChannel:
    """Encryption of a connection, for calls on their callers' threads.

    Owned by the holder of the event loop, as the `TlsSocket` is whose parts these are.
    """

    def __new__(
        cls,
        *,
        connection: object,
        tls: SSLObject,
        incoming: MemoryBIO,
        outgoing: MemoryBIO,
        page: memoryview,
    ) -> Self: ...

Digester = Callable[[int, memoryview, memoryview], int]

class LinkState:
    """Links to and from one peer, as a call on its caller's thread needs them.

    Owned by the holder of the event loop.
    """

    credit: int
    """Bytes of unasked messages that may be sent."""
    consumed: int
    """Bytes of unasked messages that calls took in, for which no credit was given back."""
    signed_frames: int
    """Frames with a digest that have left."""
    verified_frames: int
    """Frames with a digest that have been taken in, except those that were put back."""
    has_rest: bool
    """Whether a frame of a call has left in part."""
    is_lent: bool
    """Whether both directions are between two frames, as was known when the loop last ran."""
    is_noted: bool
    """Whether the loop knows that something was read ahead, or that the link has stopped."""
    @property
    def has_stopped(self) -> bool:
        """Whether what comes cannot be decrypted any more."""

    @property
    def pending(self) -> int:
        """Bytes that were read ahead."""

    def __new__(cls, credit: int, /) -> Self: ...
    def connect_inbound(self, descriptor: int, channel: TlsChannel | None, /) -> None:
        """Set the descriptor to read from, and its encryption; -1: there is none."""

    def connect_outbound(self, descriptor: int, channel: TlsChannel | None, /) -> None:
        """Set the descriptor to write to, and its encryption; -1: there is none."""

    def set_digesters(
        self,
        sign: Digester,
        verify: Digester,
        signing_keys: tuple[bytes, bytes] | None,
        verifying_keys: tuple[bytes, bytes] | None,
        /,
    ) -> None:
        """Set what makes the digests of frames that go, and that come.

        Called with the number of the frame among those with a digest, its header, which has 0 for
        it, and its payload. With keys, of frames and of payloads (32 bytes each), the core makes
        the same digests by OpenSSL 3, where that is found.
        """

    def compute_digest(self, number: int, header: bytes, payload: bytes, /) -> int:
        """Return the digest of a frame that goes, as the core makes it without Python.

        Raises:
            ValueError: it does not, or not of that.
        """

    def feed(self, data: bytes, /) -> None:
        """Put bytes behind those that were read ahead."""

    def unread(self, data: bytes, /) -> None:
        """Put bytes before those that were read ahead."""

    def take(self, nbytes: int = ..., /) -> bytes:
        """Take the first bytes that were read ahead; without a number all."""

    def take_rest(self) -> bytes:
        """Take what is left to send of a message that a `LinkMessages` has begun."""

Span = tuple[int, int, int]
"""Area (0: input, 1: output, 2: scratch), first byte, bytes."""
LinkRound = tuple[
    tuple[tuple[Span, Span], ...],  # copies: source, target
    tuple[tuple[tuple[Span, ...], Span], ...],  # folds: sources, target
    tuple[tuple[int, int, Span], ...],  # sends: link, step, span
    # receives: link, step, span, reduces, comes from a lower rank, may be written as it comes
    tuple[tuple[int, int, Span, bool, bool, bool], ...],
]

def board_bytes(capacity: int, /) -> int:
    """Return the bytes of a rank's area of a board with posts of so many bytes."""

class HostBoard:
    """Posts of the ranks of a group on one host, for one another.

    A rank posts at most once a call. It may be as many calls ahead as the board has places.
    """

    def __new__(
        cls, *, rank: int, segments: tuple[Segment, ...], offsets: tuple[int, ...], capacity: int
    ) -> Self: ...
    def over(self, number: int, /) -> None:
        """Let the others know that this rank needs no post of calls up to that number."""

    def give_up(self, number: int, /) -> None:
        """Let the others know that this rank does not go on with that call."""

    def full(self, number: int, /) -> int:
        """Return the rank for whose sake this one may not post that call yet; -1: it may."""

    def post(self, number: int, signature: int, arrays: tuple[NDArray[Any], ...], /) -> None:
        """Post arrays, end to end.

        Raises:
            ValueError: there is no room.
        """

    def look(self, rank: int, number: int, signature: int, nbytes: int, /) -> int:
        """Return whether a rank has posted that call: 0: no, 1: yes, 2: an unlike one, 3: never."""

    def read(self, rank: int, number: int, start: int, into: NDArray[Any], /) -> None:
        """Read a post from that byte on."""

    def wait(self, rank: int, number: int, room: bool, seconds: float, spin: float, /) -> bool:
        """Wait until a rank has posted that call or never will, or leaves `room` for this one's.

        False: not within that time, or woken; `spin` is how long it does not sleep.
        """

    def wake(self) -> None:
        """End the wait under way, or the next; from any thread."""

HostSteps = tuple[
    HostBoard | None,
    int,  # the head, by its place on the board
    bool,  # ranks of a host bring the head something, or at least word that they came
    bool,  # which is reduced; else it lies end to end
    bool,  # the head gives them a result, or at least word that all came
    Span,  # what this rank brings
    Span,  # the head: where that of all of its host goes
    Span,  # the head: what it gives
    Span,  # another: where that goes
    int,  # from this byte of
    int,  # so many that are given
]

class LinkCall:
    """The schedule of calls over links, compiled; each is carried out on the thread that runs it.

    The links are lent to a call from `begin` until `run` returns 0, or `withdraw`.
    """

    at: int
    """How many rounds have ended."""
    has_landed: bool
    """Whether the call has written to its outputs."""
    is_across: bool
    """Whether the call is among its rounds, and not among the steps before or behind them."""

    def __new__(
        cls,
        *,
        links: tuple[LinkState, ...],
        group: int,
        signature: int,
        part: int,
        op: int,
        dtype: int,
        divisor: int,
        rounds: tuple[LinkRound, ...],
        steps: HostSteps | None = None,
        digests: bool = False,
    ) -> Self:
        """`op` -1: nothing is reduced. `steps`: those of the ranks of a host, around the rounds.

        `digests`: the frames of the group have some.
        """

    def begin(
        self,
        sequence: int,
        inputs: tuple[NDArray[Any], ...],
        outputs: tuple[NDArray[Any], ...],
        scratch: tuple[NDArray[Any], ...],
        /,
    ) -> None:
        """Begin the call of that number.

        Raises:
            ValueError: the arrays are not those of the schedule, or a span lies in several.
        """

    def run(self, until: int, spin: int, /) -> int:
        """Go on until `until`, in ns of the monotonic clock, spinning up to `spin` at a time.

        Return what stopped it.

        0: the call has ended. 1: the time is over. 2: a frame is in the way, to be taken. 3: it
        cannot go on here.
        """

    def take_foreign(self) -> tuple[int, bytes]:
        """Take the frame that is in the way: its link and its bytes."""

    def withdraw(self) -> tuple[int, bool, list[tuple[int, int]], list[tuple[int, bytes]]]:
        """End the call here; return its round, and whether the copies of that are made.

        Then the messages that have left, at least in part: the index of the round, which may be the
        next, and the place among what that sends. Then what is left of such a message, by link.
        What has come of the round is read ahead again.
        """

Piece = tuple[int, int, int]
"""Memory (from 0: the arrays of the call, -1: staging, -2: scratch), first byte, bytes."""
ComparisonRow = tuple[
    LinkCall,
    object,  # what the owner knows it by
    tuple[int, ...],  # ranks of the world, by its links
    NDArray[np.uint64],  # this rank's digest, followed by room for those of its host
    NDArray[np.uint64],  # those of all ranks
    NDArray[Any],  # scratch
    bool,  # the first array is the result, the same on all ranks; else there is none
]
HeadsRow = tuple[
    bytes,  # sizes that this rank sends before each block, and each block that comes is to have
    tuple[Piece, ...],  # their places in the staging memory: before those sent, then the others
]
PlanRow = tuple[
    LinkCall,
    object,  # what the owner knows the call by
    CallSignature,
    int,  # its 64 bits
    str,  # how the call is carried out, for people
    NDArray[Any],  # scratch
    tuple[int, ...],  # ranks of the world, by the call's links
    tuple[Piece, ...],  # input
    tuple[Piece, ...],  # output
    tuple[Piece, ...],  # scratch
    int,  # bytes of staging memory
    tuple[tuple[Piece, Piece], ...],  # staged outputs: in the staging memory, in an array
    tuple[tuple[Piece, Piece], ...],  # what is read from the staging memory, likewise
    bool,  # what is staged begins as the output
    bool,  # the first array is divided by the group's size in the end
    bool,  # calls without a label need not hear from all ranks beside their messages
    HeadsRow | None,  # where blocks travel behind the sizes of all that their sender has
    ComparisonRow | None,  # the exchange of digests of the results
]
LinkCallRow = tuple[
    int,  # sequence
    CallSignature,
    str,  # how
    int,  # bytes that this rank brought
    int,  # started, ns
    int,  # finished; 0: not yet
    Source | None,
]

class LinkCollectives:
    """Short plain collectives of one group over links, on their callers' threads.

    `thread` is a LoopThread, `owner` a `DirectCalls`. A call returns False where it is to go
    another way, and nothing has happened.

    Those called `start_...` only begin one, of arrays of up to 128 KiB, and hold their caller for
    peers that are about to come: for 0.05 ms and 1 ns a byte, in 2 calls of 16 for 1 ms and as
    much. On a thread with an event loop, which awaits the call, arrays are of up to 1 MiB; with
    more than 128 KiB it is held for half a nanosecond a byte, and where something of the call has
    come by then for the other half. For the thread `soon_waiting`, where it comes within 0.3 ms
    from the call before, size and time are those of a call that it waits for. They return its work,
    ended or not, whose result is `value`; None where nothing has happened. A `value` that is the
    `x` of a reduce is the result on the root, elsewhere None is.
    """

    prepared: int
    """Number of the last call for which the owner has prepared."""
    soon_waiting: int
    """Thread that waited, as soon as it had begun the last of them, for calls that did not end at
    once; 0: none did."""
    begun_at: float
    """When the latest call was begun, in seconds of the monotonic clock."""

    def __new__(
        cls,
        *,
        thread: object,
        owner: object,
        order: object,
        progress: object,
        group: int,
        signatures: dict[int, int],
        calls: dict[int, CallSignature | str],
        completed: dict[int, int],
        note_duration: Callable[[float], object],
        checksum: Callable[[memoryview], int],
        rank: int,
        size: int,
        records: int,
    ) -> Self: ...
    def barrier(self, timeout: float | None, label: str | None, /) -> bool: ...
    def all_reduce(
        self, x: object, op: object, timeout: float | None, label: str | None, /
    ) -> bool: ...
    def reduce(
        self, x: object, root: int, op: object, timeout: float | None, label: str | None, /
    ) -> bool: ...
    def broadcast(
        self, x: object, root: int, timeout: float | None, label: str | None, /
    ) -> bool: ...
    def all_gather_into_tensor(
        self, output: object, x: object, timeout: float | None, label: str | None, /
    ) -> bool: ...
    def reduce_scatter_tensor(
        self, output: object, x: object, op: object, timeout: float | None, label: str | None, /
    ) -> bool: ...
    def all_to_all_single(
        self, output: object, x: object, timeout: float | None, label: str | None, /
    ) -> bool: ...
    def scan(self, x: object, op: object, timeout: float | None, label: str | None, /) -> bool: ...
    def exscan(
        self, x: object, op: object, timeout: float | None, label: str | None, /
    ) -> bool: ...
    def gather(
        self, x: object, gather_list: object, root: int, timeout: float | None, label: str | None, /
    ) -> bool: ...
    def scatter(
        self,
        x: object,
        scatter_list: object,
        root: int,
        timeout: float | None,
        label: str | None,
        /,
    ) -> bool: ...
    def all_gather(
        self, outputs: object, x: object, timeout: float | None, label: str | None, /
    ) -> bool: ...
    def reduce_scatter(
        self,
        output: object,
        inputs: object,
        op: object,
        timeout: float | None,
        label: str | None,
        /,
    ) -> bool: ...
    def all_to_all(
        self, outputs: object, inputs: object, timeout: float | None, label: str | None, /
    ) -> bool: ...
    def start_barrier(
        self, timeout: float | None, label: str | None, value: Any, /
    ) -> Work | None: ...
    def start_all_reduce(
        self, x: object, op: object, timeout: float | None, label: str | None, value: Any, /
    ) -> Work | None: ...
    def start_reduce(
        self,
        x: object,
        root: int,
        op: object,
        timeout: float | None,
        label: str | None,
        value: Any,
        /,
    ) -> Work | None: ...
    def start_broadcast(
        self, x: object, root: int, timeout: float | None, label: str | None, value: Any, /
    ) -> Work | None: ...
    def start_all_gather_into_tensor(
        self, output: object, x: object, timeout: float | None, label: str | None, value: Any, /
    ) -> Work | None: ...
    def start_reduce_scatter_tensor(
        self,
        output: object,
        x: object,
        op: object,
        timeout: float | None,
        label: str | None,
        value: Any,
        /,
    ) -> Work | None: ...
    def start_all_to_all_single(self, *arguments: object) -> Work | None: ...
    def start_scan(self, *arguments: object) -> None: ...
    def start_exscan(self, *arguments: object) -> None: ...
    def start_gather(self, *arguments: object) -> Work | None: ...
    def start_scatter(self, *arguments: object) -> Work | None: ...
    def start_all_gather(self, *arguments: object) -> Work | None: ...
    def start_reduce_scatter(self, *arguments: object) -> None: ...
    def start_all_to_all(self, *arguments: object) -> Work | None: ...
    def run_step(
        self,
        kind: str,
        arguments: tuple[object, ...],
        signature: CallSignature,
        number: int,
        timeout: float | None,
        label: str | None,
        step: object,
        waits: bool,
        /,
    ) -> Work | bool:
        """Carry out the first step of a composite call, of which `signature` and `number` tell.

        It has the `arguments` of a call of that `kind`. True: the call has ended with it, which
        `step` says, a `FirstStep`. Its work: it goes on elsewhere; not waited for. False: nothing
        has happened. If the caller does not wait, it is held only for peers that come at once.
        """
    def records(self, last: int, /) -> list[LinkCallRow]: ...
    def call_site(self, sequence: int, /) -> Source | None: ...
    def start_times(self) -> list[tuple[int, float]]: ...
    def totals(self) -> tuple[int, float]:
        """Return the bytes and the seconds of what ended well and is recorded here."""
    def inline_call(self) -> tuple[int, int, str, str | None] | None:
        """Return the thread, number, operation and label of the call under way."""

    def last_call(self) -> tuple[int, str, int, str] | None:
        """Return the number, operation, bytes and description of the latest call; None: none."""

    def is_held(self) -> bool:
        """Say whether a call that this thread begins now holds it as one that it waits for."""

    def forget_plans(self) -> None: ...

class LinkMessages:
    """Short messages of one group over links, on their callers' threads.

    `thread` is a LoopThread, `owner` a `DirectMessages`; `sent` and `received` count messages by
    keys. `digests` tells whether all frames of the group have one.
    """

    may_receive: bool
    """Whether no receive is posted, and no message waits for one."""

    def __new__(
        cls,
        *,
        thread: object,
        owner: object,
        order: object,
        sent: dict[tuple[int, int], int],
        received: dict[tuple[int, int], int],
        group: int,
        digests: bool,
        records: int,
    ) -> Self: ...
    def add_peer(self, rank: int, place: int, link: LinkState, key: tuple[int, int], /) -> None:
        """Add a rank, as callers have it, with its place in the group."""

    def send(
        self, x: object, dst: int | None, tag: int, timeout: float | None, label: str | None, /
    ) -> int:
        """Send; 1: sent, 0: declined, 2: the loop is not free."""

    def recv(
        self, x: object, src: int | None, tag: int, timeout: float | None, label: str | None, /
    ) -> int:
        """Receive; return the sender. -1: declined, -2: the loop is not free."""

    def try_recv(
        self, x: object, src: int | None, tag: int, timeout: float | None, label: str | None, /
    ) -> int:
        """Receive likewise what comes within 0.05 ms; for 2 messages of 16 within 0.3 ms."""

    def records(self, last: int, /) -> list[MessageRow]: ...
    def totals(self) -> tuple[int, float]:
        """Return the bytes and the seconds of what ended well and is recorded here."""

class Segment:
    """Shared memory of one process, with a directory of the areas of its groups."""

    fd: int
    nbytes: int

    @classmethod
    def create(cls, nbytes: int, nonce: bytes, /) -> Self: ...
    @classmethod
    def open(cls, path: str, nbytes: int, nonce: bytes, /) -> Self: ...
    def publish(self, group: int, offset: int, terms: int, /) -> bool: ...
    def find(self, group: int, /) -> tuple[int, int] | None: ...
    def await_entry(self, group: int, seconds: float, /) -> None: ...
    def retire(self, group: int, /) -> None: ...
    def is_retired(self, group: int, /) -> bool: ...
    def clear(self, offset: int, nbytes: int, /) -> bool:
        """Give pages back to the system; False: a peer hangs in them, they are lost."""

    def prefault(self, offset: int, nbytes: int, /) -> bool:
        """Touch whole pages before they are used, without the GIL; False: the system cannot."""

class Block:
    """A writeable buffer in a segment, which it keeps."""

    def __init__(self, segment: Segment, offset: int, nbytes: int, /) -> None: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

class MemoryOwner:
    """Base of classes in Python whose objects are buffers: of what their `tomemory` returns."""

class ShmComm:
    """The communicator of one group over shared memory.

    The methods named after collectives run on the caller's thread, arguments by position. They
    return True when the call has ended well; False when nothing has happened, because a call is
    under way or an argument is not plain (then the careful way tells what is wrong). They raise
    what `on_failure` raises.

    `on_failure` must raise the error of a call that failed.
    Ranks must agree on operation, dtype, count, op, root, shape and label. `on_slow(sequence,
    operation, waiting, deadline)` tells of a call that has been blocked for a while, again about
    every second, and with waiting 0 when it has ended. A negative deadline then says that an
    exception of a signal handler ended it, whose name stands for the operation.
    """

    last_number: int
    """Number of the latest call that has one."""
    timeout: float
    """Seconds that a call may take when it does not say otherwise; may be set."""

    def __init__(
        self,
        *,
        rank: int,
        segments: tuple[Segment, ...],
        offsets: tuple[int, ...],
        pids: tuple[int, ...],
        heap_offset: int,
        heap_bytes: int,
        limits: Limits,
        timeout: float,
        ops: tuple[object, ...],
        on_failure: Callable[[CallFailure], None],
        on_slow: Callable[[int, str, int, float], None],
        last_number: int,
        queued: int,
        records: int = 0,
        on_clash: Callable[[str, int, int, str], NoReturn] = ...,
        verifies: bool = False,
    ) -> None:
        """Remember the last `records` calls, or some more; 0: only what they were.

        `on_clash(operation, thread, sequence, other)` must raise: a thread calls `operation` while
        another one is in a call of its own with the same label.

        With `verifies` ranks compare digests of results that are to be the same, before the call
        ends; `scan` and `exscan` then take no call.
        """

    def barrier(self, timeout: float | None, label: str | None, /) -> bool: ...
    def all_reduce(
        self, x: object, op: object, timeout: float | None, label: str | None, /
    ) -> bool: ...
    def reduce(
        self, x: object, root: int, op: object, timeout: float | None, label: str | None, /
    ) -> bool: ...
    def broadcast(
        self, x: object, root: int, timeout: float | None, label: str | None, /
    ) -> bool: ...
    def all_gather_into_tensor(
        self, output: object, x: object, timeout: float | None, label: str | None, /
    ) -> bool: ...
    def reduce_scatter_tensor(
        self, output: object, x: object, op: object, timeout: float | None, label: str | None, /
    ) -> bool: ...
    def all_to_all_single(
        self, output: object, x: object, timeout: float | None, label: str | None, /
    ) -> bool: ...
    def scan(self, x: object, op: object, timeout: float | None, label: str | None, /) -> bool: ...
    def exscan(
        self, x: object, op: object, timeout: float | None, label: str | None, /
    ) -> bool: ...
    def gather(
        self, x: object, gather_list: object, root: int, timeout: float | None, label: str | None, /
    ) -> bool: ...
    def scatter(
        self,
        x: object,
        scatter_list: object,
        root: int,
        timeout: float | None,
        label: str | None,
        /,
    ) -> bool: ...
    def all_gather(
        self, outputs: object, x: object, timeout: float | None, label: str | None, /
    ) -> bool: ...
    def reduce_scatter(
        self,
        output: object,
        inputs: object,
        op: object,
        timeout: float | None,
        label: str | None,
        /,
    ) -> bool: ...
    def all_to_all(
        self, outputs: object, inputs: object, timeout: float | None, label: str | None, /
    ) -> bool: ...
    def exchange(
        self,
        sequence: int,
        messages: Messages,
        call: object,
        operation: str,
        signature: int,
        timeout: float,
        deadline: float,
        label: str | None,
        root: int = -1,
        to_root: bool = False,
        /,
    ) -> tuple[NDArray[np.uint8] | None, ...] | Literal[False]:
        """Send each rank the bytes of its message, or all of them one, and return what comes.

        That is a new array of bytes from each rank, None in the own place. `call` is what
        `describe`, records and failures have in the place of a dtype, `operation` its name.
        sequence 0: now, if nothing is under way; else False. Of a `root` all ranks know that it
        alone sends anything or, with `to_root`, alone receives anything.
        """

    def exchange_now(
        self,
        messages: Messages,
        call: object,
        operation: str,
        signature: int,
        root: int = -1,
        to_root: bool = False,
        /,
    ) -> tuple[NDArray[np.uint8] | None, ...] | Literal[False]:
        """As `exchange`, at once, with the group's timeout and no label.

        False: something else is under way; nothing has happened.
        """

    def exchange_arrays(
        self,
        sequence: int,
        arrays: NDArray[Any] | list[NDArray[Any]] | dict[int, NDArray[Any]],
        call: object,
        operation: str,
        signature: int,
        timeout: float,
        deadline: float,
        label: str | None,
        root: int = -1,
        to_root: bool = False,
        /,
    ) -> list[NDArray[Any]] | Literal[False] | None:
        """Send each rank its array, or all of them one, and return the arrays of all ranks.

        Those are C-contiguous, of one dtype on which the call's signature agrees, and new, that of
        this rank too. None: this rank has none for itself. All else is as in `exchange`, where the
        messages are those of `collectives.array_messages`.

        Raises:
            ValueError: what came is no array of the dtype.
        """

    def enqueue_exchange(
        self,
        messages: Messages,
        call: object,
        operation: str,
        signature: int,
        timeout: float,
        label: str | None,
        root: int,
        to_root: bool,
        waits: bool,
        value: Reading,
        /,
    ) -> ShmReadWork | None:
        """Queue an `exchange`, of which `value` reads what comes; else as `enqueue`."""

    def enqueue_array_exchange(
        self,
        arrays: NDArray[Any] | list[NDArray[Any]] | dict[int, NDArray[Any]],
        call: object,
        operation: str,
        signature: int,
        timeout: float,
        label: str | None,
        root: int,
        to_root: bool,
        waits: bool,
        /,
    ) -> ShmWork | None:
        """Queue an `exchange_arrays`; else as `enqueue`."""

    def all_gather_v(self, x: object, /) -> list[NDArray[Any]] | Literal[False]:
        """Make the call on this thread, with the group's timeout and no label.

        False: something else is under way, or the argument is no plain array; nothing happened.
        """

    def gather_v(self, x: object, root: int, /) -> list[NDArray[Any]] | Literal[False] | None:
        """As `all_gather_v`; None: this rank is not the root."""

    def scatter_v(self, scatter_list: object, root: int, /) -> NDArray[Any] | Literal[False]:
        """As `all_gather_v`; the list is None, or has nothing, where this rank is not the root.

        Raises:
            ValueError: what came is no array.
        """

    def all_to_all_v(self, inputs: object, /) -> list[NDArray[Any]] | Literal[False]: ...
    def reduce_scatter_v(self, inputs: object, op: object, /) -> NDArray[Any] | Literal[False]:
        """As `all_gather_v`; also False where the core does not know the operation."""

    def reduce_scatter_blocks(
        self,
        sequence: int,
        arrays: list[NDArray[Any]],
        op: object,
        call: object,
        signature: int,
        timeout: float,
        deadline: float,
        label: str | None,
        /,
    ) -> NDArray[Any] | Literal[False]:
        """Return the reduction of all ranks' arrays at this rank's index, as a new array.

        Those are aligned, C-contiguous and of one dtype, and the call's signature agrees on that,
        on their shapes and on the operation. All else is as in `exchange`.

        Raises:
            TypeError: an array does not fit, or the core does not know the operation.
        """

    def enqueue_reduce_scatter_blocks(
        self,
        arrays: list[NDArray[Any]],
        op: object,
        call: object,
        signature: int,
        timeout: float,
        label: str | None,
        value: Reading,
        waits: bool,
        /,
    ) -> ShmReadWork | None:
        """Queue a `reduce_scatter_blocks`, the result of which `value` reads; as `enqueue`."""

    def all_reduce_coalesced(
        self,
        sequence: int,
        arrays: list[NDArray[Any]],
        shapes: list[tuple[int, ...]] | None,
        op: object,
        call: object,
        operation: str,
        timeout: float,
        deadline: float,
        label: str | None,
        /,
    ) -> bool:
        """Overwrite each array, all of one dtype, with its reduction, by one call.

        `shapes` are those of which the arrays have the elements, None: their own. `call`,
        `operation` and sequence are as in `exchange`. False: it is not possible now, or they
        overlap; nothing has happened.
        """

    def take_number(self) -> int:
        """Give the next number to a call that waits for its turn in a queue."""

    def release(self) -> None:
        """Say that a call that took a number has ended."""

    async_context: Any
    """That of `set_async`; None: no call can be queued here."""
    has_queued: bool
    """Whether calls are queued here that have not ended."""

    def set_async(
        self,
        works: type[ShmWork],
        read_works: type[ShmReadWork],
        context: ShmWorkContext,
        get_timer: Callable[[], DueTimer],
        /,
    ) -> None:
        """Let calls be queued here from now on, once: the types of their works, and what they need.

        `get_timer`, called before the first, gives what hears when a thread should run them because
        nobody does.
        """

    def start_barrier(
        self, timeout: float | None, label: str | None, value: Any, /
    ) -> ShmWork | None:
        """Queue a barrier; None: an argument is not plain, or others are ahead elsewhere.

        `value` is the result of its work. A small call is published at once if it is next; what
        needs nobody then ends at once. So it is with the other calls of this kind.
        """

    def start_all_reduce(
        self, x: object, op: object, timeout: float | None, label: str | None, value: Any, /
    ) -> ShmWork | None: ...
    def start_reduce(
        self,
        x: object,
        root: int,
        op: object,
        timeout: float | None,
        label: str | None,
        value: Any,
        /,
    ) -> ShmWork | None:
        """As the others; a `value` that is `x` is the result on the root, elsewhere None is."""

    def start_broadcast(
        self, x: object, root: int, timeout: float | None, label: str | None, value: Any, /
    ) -> ShmWork | None: ...
    def start_all_gather_into_tensor(
        self, output: object, x: object, timeout: float | None, label: str | None, value: Any, /
    ) -> ShmWork | None: ...
    def start_reduce_scatter_tensor(
        self,
        output: object,
        x: object,
        op: object,
        timeout: float | None,
        label: str | None,
        value: Any,
        /,
    ) -> ShmWork | None: ...
    def start_all_to_all_single(
        self, output: object, x: object, timeout: float | None, label: str | None, value: Any, /
    ) -> ShmWork | None: ...
    def start_scan(
        self, x: object, op: object, timeout: float | None, label: str | None, value: Any, /
    ) -> ShmWork | None: ...
    def start_exscan(
        self, x: object, op: object, timeout: float | None, label: str | None, value: Any, /
    ) -> ShmWork | None: ...
    def start_gather(
        self,
        x: object,
        gather_list: object,
        root: int,
        timeout: float | None,
        label: str | None,
        value: Any,
        /,
    ) -> ShmWork | None: ...
    def start_scatter(
        self,
        x: object,
        scatter_list: object,
        root: int,
        timeout: float | None,
        label: str | None,
        value: Any,
        /,
    ) -> ShmWork | None: ...
    def start_all_gather(
        self, outputs: object, x: object, timeout: float | None, label: str | None, value: Any, /
    ) -> ShmWork | None: ...
    def start_reduce_scatter(
        self,
        output: object,
        inputs: object,
        op: object,
        timeout: float | None,
        label: str | None,
        value: Any,
        /,
    ) -> ShmWork | None: ...
    def start_all_to_all(
        self,
        outputs: object,
        inputs: object,
        timeout: float | None,
        label: str | None,
        value: Any,
        /,
    ) -> ShmWork | None: ...
    def enqueue(
        self,
        *,
        kind: str,
        dtype: np.dtype[Any] | None,
        typesig: int,
        op: object,
        root: int,
        count: int,
        sources: tuple[NDArray[Any], ...],
        targets: tuple[NDArray[Any], ...],
        send: tuple[int, ...] | None,
        recv: tuple[int, ...] | None,
        timeout: float,
        label: str | None,
        shape: tuple[int, ...] | None,
        value: Any,
        waits: bool,
    ) -> ShmWork | None:
        """Queue a call whose arguments were checked; None: others are ahead elsewhere.

        With `waits` the caller is about to wait for it.
        """

    def run_next(self) -> ShmWork | None:
        """Run the first queued call, and return it; None: there is none, or a thread waits to.

        Who has its future is yet to be told.
        """

    def hand_over(self) -> bool:
        """Say whether the caller is to tell a thread to run what is queued: it was not told."""

    def take_back(self) -> None:
        """Say that the thread that was told does something else from here on."""

    def run(
        self,
        *,
        sequence: int,
        kind: str,
        dtype: np.dtype[Any] | None,
        typesig: int,
        op: object,
        root: int,
        count: int,
        sources: tuple[NDArray[Any], ...],
        targets: tuple[NDArray[Any], ...],
        send: tuple[int, ...] | None,
        recv: tuple[int, ...] | None,
        timeout: float,
        deadline: float,
        label: str | None,
        shape: tuple[int, ...] | None,
    ) -> bool:
        """Run a call whose arguments were checked; sequence 0: now, if nothing is under way."""

    def progress(self) -> tuple[int, int, int, str, float]:
        """Return begun, ended, completed, the operation under way, and since when."""

    def inline_call(self) -> tuple[int, int, str, str | None] | None:
        """Return thread, sequence, operation and label of a call in which a thread is blocked.

        It runs there, or is the latest one. None: there is none.
        """

    def wait_times(self) -> list[float]:
        """Return for how many seconds each of the latest calls that ended was blocked or busy."""

    def last_call(self) -> tuple[int, str, int, str] | None:
        """Return sequence, operation, bytes and variant of the latest call that ended."""

    def describe(
        self, sequence: int, /
    ) -> (
        tuple[
            str,
            np.dtype[Any] | CallSignature | None,
            int,
            int,
            int,
            list[int] | None,
            tuple[int, ...] | None,
            str | None,
        ]
        | None
    ):
        """Return operation, dtype, count, op, root, shares, shape and label of a recent call.

        None: it is too long ago.

        Shares are the bytes given to each rank, then those expected from each, of the latest call
        if ranks may differ in them; else None.
        """

    def records(self, last: int, /) -> list[CallRow]:
        """Return the latest calls, oldest first, as far back as they are remembered."""

    def call_site(self, sequence: int, /) -> Source | None:
        """Return where a recent call was made; None: too old, or made through the queue."""

    def set_outcome(self, sequence: int, outcome: int, /) -> None:
        """Record how a call really ended, which is known where its failure is worded."""

    def start_times(self) -> list[tuple[int, float]]:
        """Return numbers of calls since this was last asked, 64 at most, and when each began."""

    def totals(self) -> tuple[int, float]:
        """Return the bytes and the seconds of what ended well and is recorded here."""

    def skip(self, sequence: int, /) -> None:
        """Tell the others not to wait for this rank in calls up to that number; in order.

        Ranks that number their calls with gaps have to say so of each gap.
        """

    def interrupt(self, sequence: int, /) -> None:
        """End calls up to that number early, one that runs now included."""

    def limit(self, sequence: int, /) -> None:
        """Turn down fast calls above that number."""

    def close(self) -> None:
        """End what runs and turn down all to come."""

    def wait_idle(self) -> None:
        """Return when no call runs."""

    def leave(self) -> None:
        """Say goodbye to the other ranks; nothing of this touches the memory from then on."""

class DueTimer:
    """Says when queued calls of the groups of a process have waited too long for a thread."""

    def next(self) -> ShmComm | None:
        """Wait until calls of a communicator are due; who gets it runs them. None: it is closed."""

    def close(self) -> None:
        """Let `next` return."""

class AsyncCall:
    """A call that is not waited for at once, in the queue of its communicator; base of works."""

    sequence: int
    waiting_thread: int
    operation: str
    label: str | None
    group: str
    nbytes: int
    """What this rank brings."""
    comm: ShmComm
    value: Any
    """Result of its work."""
    error: BaseException | None
    """Of a call that failed."""
    future: Future[Any] | None
    has_ended: bool

    def wait(self, timeout: float | timedelta | None = None) -> bool:
        """Run the calls up to this one, unless another thread does; as `Work.wait`."""

    def poll(self, nanoseconds: int, /) -> bool:
        """Run what ends at once, looking for it for a while; say whether the call has ended."""

    def withdraw(self, error: BaseException, /) -> bool:
        """Let it fail, and skip its turn; False: that has come."""

    def leave(self) -> None:
        """Have a thread run it: who waits for it does not run it, nor those before it."""

    def attach(self, future: Future[Any], /) -> Future[Any]:
        """Attach a future, and return it; or return that which it has already.

        If the call had ended who attaches the future completes it.
        """

    def _set_call_site(self, code: CodeType | None, instruction: int, /) -> None:
        """Record where the program made the call, if another thread began it."""

    def summary(self) -> tuple[int, str, int, str] | None:
        """Return sequence, operation, bytes and variant, once it has ended well."""

    def take_received(self) -> tuple[NDArray[np.uint8] | None, ...] | None:
        """Return what an exchange has given, once; None: nothing, or it was taken."""

class AllReduceRequest:
    """An all_reduce of one array, whose arguments were looked at once.

    A `timeout` of 0 is that of the communicator when it is started.
    """

    sequence: int
    """Number of the call that was started last."""

    def __init__(
        self,
        order: object,
        x: NDArray[Any],
        op: object,
        fallback: Callable[[], object],
        timeout: float,
        label: str | None,
        /,
    ) -> None: ...
    def start(self) -> None:
        """Give this rank's part; `x` belongs to the call until `wait` has returned.

        Raises:
            RuntimeError: it is under way already.
        """

    def wait(self) -> bool:
        """Return True when it has ended well.

        Raises:
            AllhandsError: it has not.
            RuntimeError: it was not started.
        """

class PlainCall:
    """A function that tries a method of the core first, and is called where that declines.

    The method is that of `holder.group.order`, or of the order of a group given, under the name
    `way`; it has to be one of this module's. Where it is none, a name is unknown or a thread is
    traced, all goes to the function. Otherwise as functions are: with attributes, bound in
    classes, pickled by their names.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        holder: object,
        on_error: Callable[[BaseException], None],
        way: str,
        method: str,
        passed: tuple[object, ...],
        parameters: tuple[tuple[str, int, bool, object], ...],
        positional: int,
        root: int,
        result: int,
        start: str | None = None,
        value: int = -1,
    ) -> None:
        """Tell which argument goes where.

        Args:
            on_error: hears of an exception of the method before it is raised on.
            passed: arguments of the method where nothing else is given.
            parameters: of the function: name; place among the arguments of the method, -1: the
                group, -2: the core takes the call with the default only, -3: whether it is only
                begun; whether it is required; default.
            positional: how many of them may be given by position.
            root: place of the parameter that is a rank of the world, None being what `passed`
                has, and given without a group only; -1: there is none.
            result: 0: None, declined with False; 1: a rank, declined with a negative number; 2:
                that of the method, declined with False.
            start: method that only begins the call, declined with None; it takes the same
                arguments, then the result of the work.
            value: place of that among the arguments; -1: None.
        """

    def __call__(self, *args: Any, **keywords: Any) -> Any: ...
    def __get__(self, instance: object, owner: type | None = None, /) -> Any: ...

class CallCollector:
    """Stand-in for a group's communicator or links in a block that collects calls of one thread.

    It takes blocking all_reduces of plain arrays of one dtype, with one operation and without
    timeout or label. All other calls it declines, as those do.
    """

    def __new__(cls, *, ops: tuple[object, ...], thread: int) -> Self:
        """`ops` are the operations in the order of the core's."""

    def shapes(self) -> bytes:
        """Return the shapes of the arrays collected since: of each the number of dimensions, then
        these, as 64-bit integers."""

    def take(self) -> tuple[list[NDArray[Any]], Any, int]:
        """Return the arrays collected since the last time, in order, their operation and bytes."""

    def all_reduce(
        self, x: object, op: object, timeout: float | None, label: str | None, /
    ) -> bool: ...
    def start_barrier(self, *arguments: object) -> None: ...
    def start_all_reduce(self, *arguments: object) -> None: ...
    def start_reduce(self, *arguments: object) -> None: ...
    def start_broadcast(self, *arguments: object) -> None: ...
    def start_all_gather_into_tensor(self, *arguments: object) -> None: ...
    def start_reduce_scatter_tensor(self, *arguments: object) -> None: ...
    def start_all_to_all_single(self, *arguments: object) -> None: ...
    def start_scan(self, *arguments: object) -> None: ...
    def start_exscan(self, *arguments: object) -> None: ...
    def start_gather(self, *arguments: object) -> None: ...
    def start_scatter(self, *arguments: object) -> None: ...
    def start_all_gather(self, *arguments: object) -> None: ...
    def start_reduce_scatter(self, *arguments: object) -> None: ...
    def start_all_to_all(self, *arguments: object) -> None: ...
    def barrier(self, *arguments: object) -> Literal[False]: ...
    def reduce(self, *arguments: object) -> Literal[False]: ...
    def broadcast(self, *arguments: object) -> Literal[False]: ...
    def all_gather_into_tensor(self, *arguments: object) -> Literal[False]: ...
    def reduce_scatter_tensor(self, *arguments: object) -> Literal[False]: ...
    def all_to_all_single(self, *arguments: object) -> Literal[False]: ...
    def scan(self, *arguments: object) -> Literal[False]: ...
    def exscan(self, *arguments: object) -> Literal[False]: ...
    def gather(self, *arguments: object) -> Literal[False]: ...
    def scatter(self, *arguments: object) -> Literal[False]: ...
    def all_gather(self, *arguments: object) -> Literal[False]: ...
    def reduce_scatter(self, *arguments: object) -> Literal[False]: ...
    def all_to_all(self, *arguments: object) -> Literal[False]: ...

class AtomicCalls:
    """The calls of a resilient group, all or nothing, over the ways that it has in turn.

    The methods named after collectives are those of `ShmComm`, and decline while calls are queued.
    Over links they take what `LinkCollectives` takes.
    Each keeps a copy of its outputs, makes the call, and then a barrier that takes at most
    `confirm_timeout`; the two have following numbers. What fails is given to `on_failure(failure,
    name, arguments, error, number, is_computed, was_left, backup, confirming)`, which must queue it
    ahead of all others, call `take_over` once it is, and return its work: then `on_ended(work,
    error)` returns when that ended well, or raises. The number is that of the call, the backup what
    the outputs held, until the work has ended. `was_left`: a signal's exception left the barrier,
    which goes on when it is made again under its number; over links as the work `confirming`, where
    that is None as the group's next call. `on_failure` may come again for one call, with the same
    number of the failure, when a signal's exception broke into it.

    `make_barrier()` begins a barrier over links that the core does not take, and returns its work.
    """

    last_number: int
    timeout: float
    is_busy: bool
    """Whether a call is under way, or failed and is not queued yet."""
    has_failed: bool
    """Whether a call failed and is not queued yet."""
    is_awaited: bool
    """Whether `on_idle` is to be called when the call under way over links is over, or failed; it
    must set this to False."""

    def __init__(
        self,
        *,
        on_failure: Callable[
            [int, str, tuple[Any, ...], BaseException, int, bool, bool, memoryview, Work | None],
            Any,
        ],
        on_ended: Callable[[Any, BaseException], object],
        make_barrier: Callable[[], Work],
        on_idle: Callable[[], object],
        timeout: float,
        confirm_timeout: float,
    ) -> None: ...
    def set_way(self, way: ShmComm | LinkCollectives | None, /) -> None:
        """Set the communicator, or the links, of the next calls; None: they are declined."""

    def take_over(self) -> None:
        """Note that the failed call is queued; its thread may not have gone on yet."""

    def take_counts(self) -> tuple[int, int]:
        """Return the calls that had a result, and that were confirmed, since asked last."""

    def take_number(self) -> int: ...
    def release(self) -> None: ...
    def inline_call(self) -> tuple[int, int, str, str | None] | None: ...
    def last_call(self) -> tuple[int, str, int, str] | None: ...

class ShmP2P:
    """The messages from point to point of one group over shared memory.

    `send` and `recv` run on the caller's thread, ranks are those of the world. They return False,
    and -1, when nothing has happened because an argument is not plain. They raise what `on_failure`
    raises, which must raise the error of a message that failed.
    """

    is_idle: bool
    """Whether no message is under way."""
    timeout: float
    """Seconds that a message may take when it does not say otherwise; may be set."""

    def __init__(
        self,
        *,
        rank: int,
        ranks: tuple[int, ...],
        segments: tuple[Segment, ...],
        offsets: tuple[int, ...],
        pids: tuple[int, ...],
        heap_offset: int,
        heap_bytes: int,
        limits: Limits,
        timeout: float,
        on_failure: Callable[[MessageFailure], None],
        on_first: Callable[[], object],
        records: int = 0,
    ) -> None:
        """`on_first` is called before the first message is begun here, by the thread that does."""

    @staticmethod
    def signature(dtype: str, count: int, /) -> int:
        """Return the signature of a message, which travels with its size."""

    def records(self, last: int, /) -> list[MessageRow]:
        """Return the latest messages on callers' threads, oldest first."""

    def totals(self) -> tuple[int, float]:
        """Return the bytes and the seconds of what ended well and is recorded here."""

    def send(
        self, x: object, dst: int | None, tag: int, timeout: float | None, label: str | None, /
    ) -> bool: ...
    def try_send(
        self, x: object, place: int, tag: int, timeout: float | None, label: str | None, /
    ) -> bool:
        """Send to a place in the group what can go at once; False: nothing has happened."""

    def recv(
        self, x: object, src: int | None, tag: int, timeout: float | None, label: str | None, /
    ) -> int:
        """Return the rank of the world that sent it."""

    def poll(self, x: NDArray[Any], tag: int, seconds: float, /) -> int:
        """Receive from whoever sends, if that comes within `seconds`; nothing is recorded.

        Return the rank of the world that sent it; -1: nothing came; -2: this process was forked, or
        the group is closed. When a signal's handler raises, the message may be in `x` already.
        """

    def send_frame(
        self,
        frame: NDArray[Any],
        data: object,
        place: int,
        context: int,
        sender: int,
        tag: int,
        source: int,
        number: int,
        waits: bool,
        /,
    ) -> bool:
        """Send what `view_spec` reads, in a frame as of `mpi.progress.frames` and behind it.

        False: nothing has happened: `data` is something else, or the frame cannot go at once, or
        the data is too large for it and `waits` is false.
        """

    def receive_frame(
        self,
        frame: NDArray[Any],
        memory: object,
        context: int,
        source: int,
        tag: int,
        seconds: float,
        /,
    ) -> int:
        """Receive a frame, as `poll`, and its data if it is of that context, source (-1: any), tag.

        Return 1: the data is in `memory`; 0: the frame is another, or its data is larger; -1:
        nothing came; -2: as `poll`, or `memory` is nothing that `view_spec` reads.
        """

    def start(
        self,
        receives: bool,
        array: NDArray[Any],
        peer: int,
        tag: int,
        deadline: float,
        context: object,
        /,
    ) -> Message | None:
        """Begin a message with a place in the group; None: this process was forked, or closed.

        Once it has ended it comes out of `serve`, unless it had when this returned or somebody was
        waiting for it.
        """

    def serve(self) -> list[Message] | None:
        """Carry messages on where no caller does; return some that have ended. None: closed."""

    def remove_peer(self, place: int, /) -> None:
        """Say that a rank has left: what it sent is received, all else with it ends."""

    def fail(self) -> None:
        """End all messages, and all to come, but for those that are here already."""

    def wait_idle(self) -> None:
        """Return when no message is under way."""

    def close(self) -> None:
        """End `serve`, and begin nothing more."""

class Message:
    """One message that is not waited for at once."""

    context: Any
    """What `ShmP2P.start` was given by that name."""
    outcome: str
    """"Of `OUTCOMES`, or "gone": ranks that could be its other end have left."""
    source: int
    way: str
    touched: bool
    """Of a receive: whether some of a message lies in its array, whatever became of it."""
    sent_nbytes: int
    """Bytes of what was sent in place of what a receive was for."""
    sent_signature: int
    """Of the same: its dtype's name and its count, see `exchange.signed`."""
    expected: str | None
    """What the receiver of a send that was unlike expected."""

    def wait(self, seconds: float, /) -> bool:
        """Carry it on for some time at most; say whether it has ended."""

    def cancel(self) -> None: ...
    def claim(self) -> bool:
        """Say whether the caller is the first to ask, who is to tell of the end."""
