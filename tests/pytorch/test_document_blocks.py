"""The code blocks of README.md and of the pages in docs that need PyTorch."""

from pathlib import Path

import pytest
from sybil import Example

from support.documents.rules import evaluate, get_block, list_examples
from support.documents.runs import BlockRunner
from support.ranks.processes import Cluster

# Importing torch in each process takes long where all cores are busy.
pytestmark = pytest.mark.timeout(400)


@pytest.mark.parametrize(
    "example",
    [one for one in list_examples() if "torch" in get_block(one).options],
    ids=lambda one: get_block(one).name,
)
def test_a_block_does_what_it_says(example: Example, cluster: Cluster, tmp_path: Path) -> None:
    evaluate(example, BlockRunner(cluster, tmp_path, [get_block(one) for one in example.document]))
