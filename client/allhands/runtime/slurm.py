"""The nodes of a SLURM step, read from its environment. Pure."""

import re
from collections.abc import Iterator, Mapping
from itertools import islice

NODE_COUNTS = ("SLURM_STEP_NUM_NODES", "SLURM_NNODES", "SLURM_JOB_NUM_NODES")
NODE_LISTS = ("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST")
"""A step's before its job's: a step may have fewer nodes than the job."""

# Texts: `re` compiles them when they are first needed, which few starts of a job pay for.
_PART = r"(?P<plain>[^\[\],]+)|\[(?P<numbers>[^\[\]]+)\]"
_RANGE = r"(?P<first>\d+)(?:-(?P<last>\d+))?"


def count_nodes(environ: Mapping[str, str]) -> int:
    """Return how many nodes this step has, a list of several counting as 2; 0: unknown.

    Raises:
        ValueError: a variable holds something else.
    """
    for name in NODE_COUNTS:
        if text := environ.get(name):
            if not text.isdecimal():
                raise ValueError(f"{name} must be a whole number, not {text!r}")
            return int(text)
    name, _ = find_first_node(environ)
    return len(list(islice(expand_nodelist(environ[name]), 2))) if name else 0


def find_first_node(environ: Mapping[str, str]) -> tuple[str, str]:
    """Return the naming variable and the first node of this step, the node of rank 0.

    Both are empty if no variable is set.

    Raises:
        ValueError: the variable holds no list of nodes.
    """
    for name in NODE_LISTS:
        if text := environ.get(name):
            try:
                return name, next(expand_nodelist(text))
            except (ValueError, StopIteration) as error:
                raise ValueError(f"{name} is not a list of nodes: {text!r}") from error
    return "", ""


def expand_nodelist(text: str) -> Iterator[str]:
    """Yield the names in a compressed list, as in `node[01-03,07],head` or `rack[0-1]n[1-2]`.

    Raises:
        ValueError: it is malformed; names before that have been yielded.
    """
    pattern = re.compile(_PART)
    at = 0
    while at < len(text):
        parts: list[re.Match[str]] = []
        while at < len(text) and text[at] != ",":
            part = pattern.match(text, at)
            if part is None:
                raise ValueError(f"unexpected {text[at:]!r} in {text!r}")
            parts.append(part)
            at = part.end()
        if not parts:
            raise ValueError(f"an empty name in {text!r}")
        yield from _expand_names(
            [part["plain"] or "" for part in parts], [p["numbers"] for p in parts]
        )
        at += 1


def _expand_names(plain: list[str], numbers: list[str | None]) -> Iterator[str]:
    """Yield every combination of the parts of one name, the last part running fastest."""
    if not plain:
        yield ""
        return
    heads = [plain[0]] if numbers[0] is None else _expand_numbers(numbers[0])
    for head in heads:
        for tail in _expand_names(plain[1:], numbers[1:]):
            yield head + tail


def _expand_numbers(text: str) -> Iterator[str]:
    """Yield the numbers of `01-03,07`, zero-padded as written."""
    for item in text.split(","):
        found = re.fullmatch(_RANGE, item, re.ASCII)
        if found is None:
            raise ValueError(f"{item!r} is not a number or a range")
        first, last = found["first"], found["last"] or found["first"]
        if int(last) < int(first):
            raise ValueError(f"{item!r} runs backwards")
        for number in range(int(first), int(last) + 1):
            yield f"{number:0{len(first)}d}"
