"""Explanations of how calls were carried out; for people."""

from typing import TypeAlias

CallSummary: TypeAlias = tuple[int, str, int, str]
"""Of a call: sequence, operation, bytes of a rank's part, and variant."""

_SHM_VARIANTS = {
    "nothing": "nothing had to move",
    "slots": "every rank's data lay in its slot, in one round",
    "staged": "data was copied into staging buffers and out of them",
    "swap": "each two ranks swapped the ownership of staging buffers, chunk by chunk",
    "mailboxes": "each pair of ranks passed boxes to and fro, chunk by chunk",
    "direct": "all arrays lie in shared memory (ah.empty) and were used where they are",
    "attach": "ranks read one another's memory (process_vm_readv)",
}


def explain_shm(summary: CallSummary) -> str:
    """Word `ShmComm.last_call`.

    That of `LinkCollectives` has its description in place of the variant, which is all that queued
    calls over links say.
    """
    sequence, operation, nbytes, variant = summary
    if variant not in _SHM_VARIANTS:
        return variant
    return (
        f"{operation} #{sequence}, {nbytes:,} bytes, over shared memory, {variant}: "
        f"{_SHM_VARIANTS[variant]}"
    )


_P2P_PATHS = {
    "nothing": "nothing had to move",
    "eager": "sent at once, through the ring of its two ranks",
    "pieces": "in pieces through the ring of its two ranks, once there was a receive",
    "direct": "its array lies in shared memory (ah.empty) and was read where it is",
    "attach": "read out of the sender's memory (process_vm_readv)",
}


def explain_shm_p2p(operation: str, nbytes: int, path: str) -> str:
    """Word how a message from point to point went over shared memory."""
    return f"{operation}, {nbytes:,} bytes, over shared memory, {path}: {_P2P_PATHS[path]}"
