"""The code blocks of README.md and of the pages in docs: each is run, or its names are checked.

`support/documents/blocks.py` says how a page says it. Blocks that need PyTorch are run by
`tests/pytorch/test_document_blocks.py`.
"""

import re
from pathlib import Path

import pytest
from sybil import Example

from support.documents.pages import ROOT
from support.documents.rules import (
    evaluate,
    get_block,
    list_documents,
    list_examples,
)
from support.documents.runs import BlockRunner
from support.ranks.processes import Cluster

EXAMPLES = list_examples()
FENCE = re.compile(r"^ *(?:```|~~~)[^`\n]+$", re.MULTILINE)
"""The beginning of a block: what ends one has no text."""


@pytest.mark.parametrize(
    "example",
    [one for one in EXAMPLES if "torch" not in get_block(one).options],
    ids=lambda one: get_block(one).name,
)
def test_a_block_does_what_it_says(example: Example, cluster: Cluster, tmp_path: Path) -> None:
    evaluate(example, BlockRunner(cluster, tmp_path, [get_block(one) for one in example.document]))


def test_no_block_between_fences_is_left_out() -> None:
    found = [get_block(one).name for one in EXAMPLES]
    written = [
        page for page in list_documents() for _ in FENCE.findall(page.read_text(encoding="utf-8"))
    ]
    assert len(set(found)) == len(found)
    assert len(found) >= len(written)


def test_every_function_of_the_reference_is_called_in_an_example_of_its_page() -> None:
    blocks: dict[str, str] = {}
    for block in map(get_block, EXAMPLES):
        if block.kind == "python":
            blocks[block.page] = blocks.get(block.page, "") + block.code.text
    missing = []
    for path in sorted((ROOT / "docs/reference").glob("*.md")):
        page = f"docs/reference/{path.name}"
        functions = re.findall(r"^\.\. autofunction:: (\S+)", path.read_text(), re.MULTILINE)
        missing += [
            f"{page}: {name}"
            for name in functions
            if not re.search(rf"\b{name.rpartition('.')[2]}\(?", blocks.get(page, ""))
        ]
    assert missing == []


def test_a_block_that_uses_torch_says_so() -> None:
    said = {
        block.name
        for block in map(get_block, EXAMPLES)
        if block.kind == "python"
        and re.search(r"\btorch\b", block.script)
        and "torch" not in block.options
    }
    assert said == set()
