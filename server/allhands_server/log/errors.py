"""Errors of the coordinator's log."""


class LogError(Exception):
    """The log cannot be read or written."""


class LogFull(LogError):
    """The engine has no room; nothing was appended, and reads go on."""


class LogUnwritable(LogError):
    """A write or its synchronisation has failed, with unknown outcome.

    The engine takes no more appends: what the disk holds is known only to a new opener.
    """


class LogUnavailable(LogError):
    """The engine cannot be opened or reached: another process has it, or its service is away."""


class LogDamaged(LogError):
    """The log holds other bytes than were acknowledged."""

    def __init__(self, slot: int, why: str) -> None:
        super().__init__(f"slot {slot:,} of the log is damaged: {why}")
        self.slot = slot


class LogTooNew(LogError):
    """The log was written by a later version of allhands."""

    def __init__(self, slot: int, holds: str) -> None:
        super().__init__(
            f"slot {slot:,} of the log holds {holds}: start it with the version of allhands that "
            "wrote the log, or a later one"
        )


class LogTaken(LogDamaged):
    """Another daemon has written a slot that this one was to write."""

    def __init__(self, slot: int, data: bytes) -> None:
        super().__init__(slot, "another daemon has written it")
        self.data = data
        """The bytes in the slot."""
