"""Limits on what jobs and clients take of a coordinator: names, defaults, and the reading of texts.

`--limit job-keys=5000` and ALLHANDS_LIMITS="job-keys=5000,memory=2GiB" name the same fields.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import fields, replace

from allhands_proto.quick_dataclass import dataclass

LIMITS_VARIABLE = "ALLHANDS_LIMITS"

WITHOUT_LIMIT = 1 << 62
"""In the place of a limit of 0, for comparisons."""
_UNITS = {"": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
# A text: `re` compiles it when it is first needed, which few starts of a job pay for.
_VALUE = r"([0-9]{1,15})(|KiB|MiB|GiB|TiB)"


def write_name(field: str) -> str:
    """Return the name of a limit as users write it."""
    return field.replace("_", "-")


@dataclass(frozen=True, slots=True)
class ResourceLimits:
    """The limits of a coordinator; sizes in bytes, rates in calls a second, 0: not limited."""

    memory: int = 0
    """Of all jobs, with histories and calls under way; a daemon takes a share of its host's."""
    value_size: int = 4 << 20
    jobs: int = 10_000
    job_bytes: int = 0
    """Keys, queues, leases and waiting calls; 0: half of the room for those of all jobs."""
    job_keys: int = 1_000_000
    job_waiters: int = 100_000
    """Waiting calls, those of barriers and watches among them."""
    job_watches: int = 10_000
    job_leases: int = 10_000
    lease_keys: int = 10_000
    """Keys bound to one lease or member."""
    job_members: int = 1_000_000
    job_groups: int = 100_000
    job_rate: int = 0
    client_waiters: int = 20_000
    """Calls of one connection that wait."""
    client_bytes: int = 64 << 20
    """Calls of one connection that wait for the log, and replies that it has not taken in."""
    client_rate: int = 0

    def validate(self) -> None:
        """Check that no limit is so low, or so high, that nothing could work.

        Raises:
            ValueError: says which.
        """
        for name, least, most in (
            ("value_size", 1, DEFAULT_LIMITS.value_size),
            ("client_bytes", 1 << 20, 1 << 50),
            ("memory", 16 << 20, 1 << 50),
        ):
            value = getattr(self, name)
            if value and not least <= value <= most:
                raise ValueError(
                    f"the limit {write_name(name)} is from {least:,} to {most:,} bytes, "
                    f"and not {value:,}"
                )


DEFAULT_LIMITS = ResourceLimits()
LIMIT_NAMES = tuple(write_name(field.name) for field in fields(ResourceLimits))


def read_limits(texts: Iterable[str], environ: Mapping[str, str]) -> ResourceLimits:
    """Return the limits of a daemon; those given override those of the environment.

    Args:
        texts: each NAME=VALUE, a size with KiB, MiB or GiB if wanted.

    Raises:
        ValueError: one of them names no limit, or has no value; says what there is.
    """
    inherited = [one.strip() for one in environ.get(LIMITS_VARIABLE, "").split(",") if one.strip()]
    limits = replace(DEFAULT_LIMITS, **dict(map(_read_limit, (*inherited, *texts))))
    limits.validate()
    return limits


def _read_limit(text: str) -> tuple[str, int]:
    name, is_assigned, value = text.partition("=")
    if name not in LIMIT_NAMES:
        raise ValueError(f"there is no limit {name!r}; there are: {', '.join(LIMIT_NAMES)}")
    found = re.fullmatch(_VALUE, value, re.ASCII)
    if not is_assigned or found is None:
        raise ValueError(
            f"the limit {name} is a whole number, with KiB, MiB or GiB if wanted, "
            f"or 0 for none, and not {value!r}"
        )
    return name.replace("-", "_"), int(found[1]) * _UNITS[found[2]]
