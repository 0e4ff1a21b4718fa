"""Texts of verdicts and of the states of absent ranks."""

from allhands_proto.verdicts import AbsentRank, append_clause, describe_absent_ranks


def test_clause_follows_one_line_and_stands_alone_after_several() -> None:
    assert append_clause("rank 1 is busy", "more") == "rank 1 is busy; more"
    assert append_clause("rank 1 is at\n    go()", "more") == "rank 1 is at\n    go()\nmore"


def test_stacks_of_absent_ranks_follow_the_sentences_on_all_of_them() -> None:
    late = [
        AbsentRank(1, "busy", "rank 1 is busy", stack="    sleep(4)\n"),
        AbsentRank(2, "dead", "rank 2 is dead"),
        AbsentRank(3, "busy", "rank 3 is busy", stack="    load()\n"),
    ]
    assert describe_absent_ranks(late) == (
        "rank 1 is busy; rank 2 is dead; rank 3 is busy"
        "\nrank 1 is at\n    sleep(4)"
        "\nrank 3 is at\n    load()"
    )
