"""The table of every operation on every dtype, for docs/matrix.md."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from support.arrays.dtype_cases import DTYPES, MOVING, OPS, REDUCING, SCANNING, SPARSE, WORKS, Cell

RULES = """\
- Results keep the dtype. Integers wrap around; floats overflow to infinity, `float8_e4m3fn`,
  which has none, to NaN. Nothing warns.
- Of booleans SUM, MAX, BOR and LOR are *or*, PRODUCT, MIN, BAND and LAND are *and*.
- AVG of integers divides their sum, which wraps around, towards zero; of booleans it is refused.
- MIN and MAX are NaN where any contribution is.
- `float16`, `bfloat16` and `float8` are combined in float32, in the order of ranks, and rounded
  once; where a group spans hosts, once by each host and once more between them.
- LAND, LOR and LXOR take what is not 0 for true, and give 0 or 1 in the dtype of the arrays.
- `ReduceOp.premul_sum(factor)` multiplies every contribution first, in its dtype (floats narrower
  than float32: in float32). Integers take whole factors that fit their dtype.
- MINLOC and MAXLOC: of equal values the least index counts; NaN counts before all numbers.
- `ReduceOp.user(function)`: `f(f(f(x0, x1), x2), x3)`, on any dtype without Python objects.
""".splitlines()


def table(found: dict[Cell, str]) -> str:
    """Return the table as Markdown; the same cells of all reductions are shown once."""
    notes: dict[str, str] = {}
    reductions = [
        [dtype, *(_shown(found, REDUCING, op, dtype, notes) for op in OPS)] for dtype in DTYPES
    ]
    scans = [
        [dtype, *(_shown(found, SCANNING, op, dtype, notes) for op in OPS)] for dtype in DTYPES
    ]
    sparse = [[dtype, *(_shown(found, SPARSE, op, dtype, notes) for op in OPS)] for dtype in DTYPES]
    movements = [
        [dtype, *(_shown(found, [one], "", dtype, notes) for one in MOVING)] for dtype in DTYPES
    ]
    kinds = (
        "`pair` is a structured dtype of a value and an index, `record` any other structured dtype."
    )
    lines = [
        *_head(found),
        "## Reductions",
        "",
        f"The same for {', '.join(f'`{one}`' for one in REDUCING[:-1])} and `{REDUCING[-1]}`.",
        kinds,
        "",
        *_markdown(["dtype", *OPS], reductions),
        "",
        "## Scans",
        "",
        "The same for `scan` and `exscan`.",
        "",
        *_markdown(["dtype", *OPS], scans),
        "",
        "## Sparse arrays",
        "",
        "`all_reduce` of `ah.SparseArray`: what is not stored counts as zero.",
        "",
        *_markdown(["dtype", *OPS], sparse),
        "",
        "## Movements",
        "",
        *_markdown(["dtype", *(f"`{one}`" for one in MOVING)], movements),
        "",
        "## Rules",
        "",
        *RULES,
        "",
        "## Refusals",
        "",
        *(f"- **{letter}** {text}" for text, letter in notes.items()),
        "",
    ]
    return "\n".join(lines)


def _head(found: dict[Cell, str]) -> Iterator[str]:
    count = Counter("works" if one == WORKS else "refused" for one in found.values())
    yield "# Every operation on every dtype"
    yield ""
    yield "Made by `make tables` from what `tests/parity/test_matrix.py` sees: each cell is run"
    yield "on 2 and 3 ranks, over links and over shared memory, and compared bit by bit with"
    yield "what NumPy and ml_dtypes give. A letter is a refusal: on every rank, before a byte"
    yield "moves, and with every buffer as it was."
    yield ""
    yield f"**{len(found)} cells: {count['works']} work, {count['refused']} are refused.**"
    yield ""


def _shown(
    found: dict[Cell, str], operations: Iterable[str], op: str, dtype: str, notes: dict[str, str]
) -> str:
    said = {found[Cell(one, op, dtype)] for one in operations}
    if said == {WORKS}:
        return "yes"
    letters = []
    for one in sorted(said):
        general = re.sub(rf"(?<!\w){re.escape(str(DTYPES[dtype]))}(?!\w)", "*dtype*", one, count=1)
        if op:
            general = re.sub(rf"\b{re.escape(OPS[op].name)}(?!\w)", "*op*", general, count=1)
        letters.append(notes.setdefault(general, chr(ord("a") + len(notes))))
    return ", ".join(letters)


def _markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    for row in (head, ["-" * width for width in widths], *rows):
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        yield f"| {' | '.join(cells)} |"
