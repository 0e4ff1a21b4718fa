"""Transactions as text."""

import pytest

from allhands import kv
from allhands.cli.txn_text import TxnText, parse_txn


def test_a_transaction_has_conditions_and_two_branches() -> None:
    read = parse_txn(
        """value("a") = "x y"
version("a b") > "3"
mod("m") != 4
create("c") < 9
lease("l") = "0"

put a 'two words' --lease=7
get a --prefix

del a b
get c
"""
    )
    assert read == TxnText(
        (
            kv.value("a") == "x y",
            kv.version("a b") > 3,
            kv.mod_revision("m") != 4,
            kv.create_revision("c") < 9,
            kv.lease("l") == 0,
        ),
        (kv.Put("a", "two words", 7), kv.Get("a", prefix=True)),
        (kv.Delete("a", "b"), kv.Get("c")),
    )


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("", TxnText((), (), ())),
        ("\n\n", TxnText((), (), ())),
        ("\nput a b\n", TxnText((), (kv.Put("a", "b"),), ())),
        ('v("a") = "1"\n\n\ndel a', None),
        (r'value("a\"b") = "\\"' "\n", TxnText((kv.value('a"b') == "\\",), (), ())),
        ('mod("a") = "1"\n\n\nget a', TxnText((kv.mod_revision("a") == 1,), (), (kv.Get("a"),))),
    ],
)
def test_parts_may_be_empty(text: str, read: TxnText | None) -> None:
    if read is None:
        with pytest.raises(ValueError, match="no condition"):
            parse_txn(text)
    else:
        assert parse_txn(text) == read


@pytest.mark.parametrize(
    ("text", "quoted"),
    [
        ('size("a") = "1"', "no condition"),
        ('mod("a") = "x"', "compared with a number"),
        ('mod("a") >= "1"', "no condition"),
        ("\nput a", "no operation: 'put a'"),
        ("\nmove a b", "no operation: 'move a b'"),
        ("\nget a --pre", "no operation"),
        ("\nput a 'b", "no operation"),
        ("\n\n\nget a", "three parts"),
    ],
)
def test_what_cannot_be_read_is_quoted(text: str, quoted: str) -> None:
    with pytest.raises(ValueError, match=quoted):
        parse_txn(text)
