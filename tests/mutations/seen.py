"""The record of mutations: the tests that noticed each, as `make mutations` ran."""

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from mutations.mutation import Mutation
from mutations.table import MUTATIONS

RECORD = Path(__file__).with_name("seen.json")


@dataclass(frozen=True)
class Seen:
    """The result of a mutation's run."""

    noticed: tuple[str, ...]
    """Tests that failed, as `file::name` below tests; a few are enough, unless all were run."""
    rows: tuple[int, ...] = ()
    """Rows whose tests noticed, where those of all rows were run."""


def key(mutation: Mutation) -> str:
    """Return a mutation's key, stable until the mutation's text changes."""
    text = "\0".join((mutation.file, mutation.old, mutation.new, mutation.face, str(mutation.row)))
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def read() -> dict[str, Seen]:
    """Return the results of mutations by key."""
    if not RECORD.exists():
        return {}
    told = json.loads(RECORD.read_text())
    return {name: Seen(tuple(one["noticed"]), tuple(one["rows"])) for name, one in told.items()}


def write(found: Mapping[str, Seen]) -> None:
    """Store the results of the mutations in the table."""
    known = {key(one): one for one in MUTATIONS}
    kept = {
        name: asdict(found[name])
        for name in sorted(known, key=lambda name: (known[name].row, name))
        if name in found
    }
    RECORD.write_text(json.dumps(kept, indent=1) + "\n")


def cells(rows: Iterable[int]) -> dict[int, str]:
    """Return the parity table's cells for each row."""
    found, of_row = read(), defaultdict(list)
    for one in MUTATIONS:
        seen = found.get(key(one))
        if seen is not None and seen.noticed:
            where = one.file.replace("|", "/")
            of_row[one.row].append(f"{one.breaks} (`{where}`)")
    return {row: "<br>".join(of_row[row]) or "none yet" for row in rows}
