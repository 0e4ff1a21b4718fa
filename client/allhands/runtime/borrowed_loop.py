"""Check that a thread which waits for the event loop has not borrowed it itself."""

import sys


def check_may_wait() -> None:
    """Check that no call of this thread has borrowed the loop; cheap, and loads no module.

    Raises:
        RuntimeError: the handler of a signal broke into such a call.
    """
    core = sys.modules.get("allhands._native")
    if core is not None and core.is_in_gate():
        raise RuntimeError(
            "the handler of a signal broke into a call of allhands and waits for another, which "
            "would wait for ever: raise an exception in the handler, and go on where it is caught"
        )
