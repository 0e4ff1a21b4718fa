"""The index of keys, against a sorted list."""

import random

import pytest

from allhands_server.machine.store.key_index import KeyIndex
from allhands_server.machine.store.key_range import KeyRange


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("most", [3, 100])
def test_keys_come_and_go_a_few_or_many_at_once(most: int, seed: int) -> None:
    randomly = random.Random(seed)
    held = {f"k{randomly.randrange(1000)}" for _ in range(50)}
    index = KeyIndex(held)
    for _ in range(60):
        for _ in range(randomly.randrange(most)):
            key = f"k{randomly.randrange(1000)}"
            if key not in held:
                held.add(key)
                index.add(key)
        gone = randomly.sample(sorted(held), min(len(held), randomly.randrange(most)))
        index.remove_all(gone)
        held.difference_update(gone)
        if randomly.random() < 0.5:  # else the next changes meet keys that are not sorted in
            first, end = sorted(f"k{randomly.randrange(1000)}" for _ in range(2))
            for wanted in (KeyRange(first, end), KeyRange(first, None)):
                listed = sorted(key for key in held if key in wanted)
                assert index.list(wanted) == listed
                assert index.count(wanted) == len(listed)
