"""What ranks that call different things get: one table, at once, and their outputs as they were."""

import textwrap

import pytest

from harness import Job

KINDS = {
    "operation": ("ah.all_gather_into_tensor(y, x)", "ah.all_reduce(x)"),
    "dtype": ("ah.all_reduce(x.view(np.int64))", "ah.all_reduce(x)"),
    "count": ("ah.all_reduce(x[1:])", "ah.all_reduce(x)"),
    "size of blocks": ("ah.reduce_scatter(x[1:], [x[1:]] * 3)", "ah.reduce_scatter(x, [x] * 3)"),
    "reduce op": ("ah.all_reduce(x, ah.ReduceOp.MAX)", "ah.all_reduce(x)"),
    "root of broadcast": ("ah.broadcast(x, 1)", "ah.broadcast(x, 2)"),
    "root of reduce": ("ah.reduce(x, 1)", "ah.reduce(x, 2)"),
    "root of gather": ("ah.gather(x, lists(1), 1)", "ah.gather(x, lists(0), 0)"),
    "root of scatter": ("ah.scatter(x, lists(1), 1)", "ah.scatter(x, lists(2), 2)"),
    "splits": ("ah.all_to_all_single(y, y, [n] * 3, [n] * 3)", "uneven(me)"),
    "order": ("ah.broadcast(x, 0); ah.all_reduce(x)", "ah.all_reduce(x); ah.broadcast(x, 0)"),
    "missing call": ("ah.barrier()", "ah.all_reduce(x)"),
}
"""What rank 1 calls, and what the others do."""


@pytest.mark.parametrize("backend", ["auto", "socket"])
@pytest.mark.parametrize("async_op", [False, True])
def test_every_rank_gets_the_table_soon_and_no_output_is_touched(job: Job, async_op: bool) -> None:
    text = f"""
    ah.init_process_group(timeout=20)
    me = ah.get_rank()

    def lists(root):
        return list(w[: 3 * n].reshape(3, n)) if me == root else None

    def uneven(me, **more):
        # Rank 0 gives rank 1 less than that expects, and rank 2 as much as that expects.
        gives, expects = ([n, n - 1, n + 1], [n] * 3) if me == 0 else ([n] * 3, [n + 1, n, n])
        return ah.all_to_all_single(w[: sum(expects)], y, expects, gives, **more)

    def call(code):
        for one in code.split("; "):
            if {async_op}:
                one = one[:-1] + (", " if one[-2] != "(" else "") + "async_op=True).wait()"
            eval(one)

    for n in (6, 40_000, 400_000):
        for kind, pair in {KINDS!r}.items():
            x, y, w = np.arange(float(n)) + me, np.arange(3.0 * n) - me, np.arange(3.0 * n + 1)
            before = [array.tobytes() for array in (x, y, w)]
            ah.barrier()
            begun = time.monotonic()
            try:
                call(pair[0] if me == 1 else pair[1])
                tell("ended", kind=kind, n=n)
            except ah.CollectiveMismatch as error:
                seconds = time.monotonic() - begun
                table = {{str(rank): row for rank, row in error.table.items()}}
                kept = before == [array.tobytes() for array in (x, y, w)]
                tell("refused", kind=kind, n=n, table=table, kept=kept, seconds=seconds)
            z = np.arange(n) + float(me)
            ah.all_reduce(z)
            tell("next", right=bool((z == 3 * np.arange(n) + 3).all()))
    ah.destroy_process_group()
    """
    ranks = job(3, textwrap.dedent(text))
    for n in (6, 40_000, 400_000):
        for kind in KINDS:
            told = [rank.expect("refused") for rank in ranks]
            assert [(one["kind"], one["n"]) for one in told] == [(kind, n)] * 3
            assert [one["kept"] for one in told] == [True] * 3, told
            table = told[0]["table"]
            assert [one["table"] for one in told] == [table] * 3
            assert sorted(table) == ["0", "1", "2"]
            assert table["0"] != table["1"]
            print(f"{kind:20} {n:8} {max(one['seconds'] for one in told):.3f} s")
            for rank in ranks:
                assert rank.expect("next")["right"]
    for rank in ranks:
        assert rank.ended() == 0, "".join(rank.errors)


CALLS = [
    "ah.all_reduce(x)",
    "ah.broadcast(x, 0)",
    "ah.reduce(x, 2)",
    "ah.scatter(x, [x] * 3 if me == 0 else None, 0)",
    "ah.all_gather_into_tensor(y, x)",
    "ah.reduce_scatter_tensor(x, y)",
    "ah.all_to_all_single(y, y)",
]


@pytest.mark.parametrize("backend", ["auto", "socket"])
def test_a_rank_that_never_comes_touches_no_output_and_the_error_says_so(job: Job) -> None:
    text = f"""
    ah.init_process_group(timeout=20)
    me = ah.get_rank()
    for n in (6, 40_000, 400_000):
        for make in (np.empty, ah.empty):
            for call in {CALLS!r}:
                x, y = make(n, np.float64), make(3 * n, np.float64)
                x[:], y[:] = 1 + me, 7
                before = x.tobytes(), y.tobytes()
                if me != 1:
                    with ah.deadline(0.02):
                        said = failure(lambda: eval(call))
                    tell("said", call=call, kept=before == (x.tobytes(), y.tobytes()), **said)
                else:
                    hear()
                    hear()
                    with ah.deadline(0):
                        failure(lambda: eval(call))
                z = np.arange(n) + float(me)
                ah.all_reduce(z)
                tell("next", right=bool((z == 3 * np.arange(n) + 3).all()))
    ah.destroy_process_group()
    """
    ranks = job(3, textwrap.dedent(text))
    for _ in range(3 * 2 * len(CALLS)):
        for at in (0, 2):
            told = ranks[at].expect("said")
            assert told["error"] == "CollectiveTimeout", told
            assert told["intact"], told
            assert told["kept"], told
            assert told["text"].endswith("its outputs are untouched") or at == 0, told
            ranks[1].say()
        for rank in ranks:
            assert rank.expect("next")["right"]
    for rank in ranks:
        assert rank.ended() == 0, "".join(rank.errors)


@pytest.mark.parametrize("backend", ["auto", "socket"])
def test_who_is_not_there_is_not_waited_for_and_says_what_it_does(job: Job, backend: str) -> None:
    text = """
    ah.init_process_group(timeout=40)
    me = ah.get_rank()
    pair = ah.new_group([0, 1])
    ah.barrier()
    if me == 1:
        hear()
        tell("late", **failure(lambda: ah.all_reduce(np.ones(3))))
    else:
        try:
            ah.all_reduce(np.ones(3 + me))
        except ah.CollectiveMismatch as error:
            tell("refused", table={str(rank): row for rank, row in error.table.items()})
    x = np.ones(3)
    ah.all_reduce(x)
    tell("next", right=bool((x == 3).all()))
    ah.destroy_process_group()
    """
    ranks = job(3, textwrap.dedent(text))
    told = [ranks[at].expect("refused")["table"] for at in (0, 2)]
    assert told[0] == told[1]
    assert told[0]["1"] == "has not called it: is outside any call since #1"
    ranks[1].say()
    late = ranks[1].expect("late")
    assert late["error"] == "CollectiveMismatch", late
    assert late["intact"]
    for row in (told[0]["0"], told[0]["2"]):
        assert row in late["text"]
    for rank in ranks:
        assert rank.expect("next")["right"]
        assert rank.ended() == 0, "".join(rank.errors)
