"""Call hooks on real ranks: every collective, hooks on some ranks only, persistent calls."""

import sys
from types import FrameType

import numpy as np

import allhands as ah
from allhands.hooks import CallInfo
from programs.protocol import hear, tell
from support.arrays.collective_cases import EVERY, case


def list_functions_of_a_call() -> list[str]:
    """Make a plain call; name the Python functions that ran for it."""
    called: list[str] = []
    all_reduce, x = ah.all_reduce, np.ones(1)

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            called.append(frame.f_code.co_name)

    sys.setprofile(note)
    try:
        all_reduce(x)
    finally:
        sys.setprofile(None)
    return called


def every_collective(hooked_ranks: list[int]) -> None:
    """Run all collectives with hooks on some ranks, and tell what the hooks saw."""
    ah.init_process_group(timeout=20)
    n, me = ah.get_world_size(), ah.get_rank()
    begun: list[CallInfo] = []
    ended: list[tuple[CallInfo, BaseException | None, float]] = []
    ah.barrier()
    functions_before = list_functions_of_a_call()
    was_direct = type(ah.default_group().order.direct_calls).__name__
    handle = None
    if me in hooked_ranks:
        handle = ah.on_call(begun.append, lambda *one: ended.append(one))
    wrong, made = [], 0
    for step, (name, length) in enumerate((one, size) for one in EVERY for size in (0, 5, 300_000)):
        one = case(name, me, n, length, root=step % n, seed=step)
        one.run(ah)
        made += 1
        wrong += filter(None, [one.wrong()])
    ah.scan(x := np.ones(3))
    found = ah.all_gather_v(np.full(me + 1, 2.0))
    objects = [None] * n
    ah.all_gather_object(objects, {"rank": me})
    again = ah.all_reduce_init(np.ones(4))
    again.start()
    again.wait()
    made += 4
    if x.tolist() != [me + 1.0] * 3 or [len(one) for one in found] != [1, 2, 3]:
        wrong.append(f"{x}, {found}")
    if objects != [{"rank": rank} for rank in range(n)]:
        wrong.append(f"{objects}")
    if handle is not None:
        handle.remove()
    ah.barrier()
    ah.barrier()
    tell(
        "done",
        wrong=wrong,
        made=made,
        begun=[one.id for one in begun],
        ended=[one[0].id for one in ended],
        sequences=[one[0].sequence for one in ended],
        operations=sorted({one.operation for one in begun}),
        errors=[str(error) for _, error, _ in ended if error],
        negative=[seconds for _, _, seconds in ended if seconds < 0],
        was_direct=was_direct,
        functions_before=functions_before,
        functions_after=list_functions_of_a_call(),
        is_direct=type(ah.default_group().order.direct_calls).__name__,
    )
    ah.destroy_process_group()


def persistent_call() -> None:
    """Start a persistent call prepared under a hook, with the hook and after its removal."""
    ah.init_process_group(timeout=20)
    ah.barrier()
    seen: list[str] = []
    with ah.on_call(lambda call: seen.append(call.operation)):
        again = ah.all_reduce_init(x := np.ones(4))
        again.start()
        again.wait()
    again.start()
    again.wait()
    tell("done", seen=seen, x=x.tolist())
    ah.destroy_process_group()


def veto() -> None:
    """Refuse the first call on rank 1 by a hook; make it again without."""
    ah.init_process_group(timeout=20)
    ah.barrier()
    x = np.ones(2)

    def refuse(call: CallInfo) -> None:
        raise LookupError(f"no {call.operation}")

    if ah.get_rank() == 1:
        try:
            with ah.on_call(refuse):
                ah.all_reduce(x)
        except LookupError as error:
            tell("refused", text=str(error), x=x.tolist())
        hear()
    ah.all_reduce(x)
    tell("sum", x=x.tolist(), sequence=ah.default_group().sequence)
    ah.destroy_process_group()
