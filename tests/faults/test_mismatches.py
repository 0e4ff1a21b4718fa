"""What ranks that call different things get: one table, at once, and their outputs as they were."""

import textwrap

import pytest

from support.ranks.processes import Job

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
    "label": ("ah.all_reduce(x, label='a')", "ah.all_reduce(x, label='b')"),
    "label on one rank": ("ah.barrier(label='a')", "ah.barrier()"),
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


@pytest.mark.parametrize("backend", ["socket"])  # shared memory waits for all before the first call
@pytest.mark.parametrize("odd", [0, 1])
def test_who_makes_a_group_after_its_first_call_has_failed_is_told(
    job: Job, backend: str, odd: int
) -> None:
    text = f"""
    ah.init_process_group(timeout=40)
    me = ah.get_rank()
    ah.barrier()
    if me == 2:
        hear()
    group = ah.new_group([0, 1, 2])
    x, w = np.ones(5 if me == {odd} else 4), np.ones(15 if me == {odd} else 12)
    tell("refused", **failure(lambda: ah.reduce_scatter_tensor(x, w, group=group)))
    x = np.ones(3)
    ah.all_reduce(x, group=group)
    tell("next", right=bool((x == 3).all()))
    ah.destroy_process_group()
    """
    ranks = job(3, textwrap.dedent(text))
    for rank in ranks:
        if rank is ranks[2]:
            rank.say()
        told = rank.expect("refused")
        assert told["error"] == "CollectiveMismatch", told
        assert "rank 0" in told["text"]
        assert "rank 1" in told["text"]
    for rank in ranks:
        assert rank.expect("next")["right"]
        assert rank.ended() == 0, "".join(rank.errors)


SHAPES = {
    "all_reduce": ("ah.all_reduce(x, **how)", "all_reduce(float64[{}], SUM)"),
    "reduce": ("ah.reduce(x, 1, **how)", "reduce(float64[{}], SUM, root 1)"),
    "broadcast": ("ah.broadcast(x, 1, **how)", "broadcast(float64[{}], root 1)"),
    "gather": (
        "ah.gather(x, list(w) if me == 1 else None, 1, **how)",
        "gather(float64[{}], root 1)",
    ),
    "scatter": (
        "ah.scatter(x, list(w) if me == 1 else None, 1, **how)",
        "scatter(float64[{}], root 1)",
    ),
    "all_gather": ("ah.all_gather(list(w), x, **how)", "all_gather(float64[{}])"),
    "all_gather_into_tensor": (
        "ah.all_gather_into_tensor(w, x, **how)",
        "all_gather_into_tensor(float64[{}])",
    ),
    "reduce_scatter": (
        "ah.reduce_scatter(x, [one.reshape(x.shape) for one in w], **how)",
        "reduce_scatter(float64[{}], SUM)",
    ),
    "reduce_scatter_tensor": (
        "ah.reduce_scatter_tensor(x, w.reshape(3 * x.shape[0], *x.shape[1:]), **how)",
        "reduce_scatter_tensor(float64[{}], SUM)",
    ),
    "an operation of the user's": (
        "ah.all_reduce(x, TWICE, **how)",
        "all_reduce(float64[{}], USER(twice))",
    ),
    "scan": ("ah.scan(x, **how)", "scan(float64[{}], SUM)"),
    "all_reduce_coalesced": (
        "ah.all_reduce_coalesced([w[0], x], **how)",
        "all_reduce_coalesced(float64[{whole}],float64[{}], SUM)",
    ),
    "broadcast_coalesced": (
        "ah.default_group().broadcast_coalesced([x, w], 0).wait()",
        "broadcast_coalesced(float64[{}],float64[3,{whole}], root 0)",
    ),
    "several arrays a rank": (
        "several.allreduce([x, w[0].reshape(x.shape)], ah.c10d.AllreduceOptions()).wait()",
        "all_reduce(float64[{}], 2 arrays a rank, SUM)",
    ),
    "a list of one": (
        "several.allreduce([x], ah.c10d.AllreduceOptions(asyncOp=how != {})).wait()",
        "all_reduce(float64[{}], SUM)",
    ),
}
"""Calls that bring `x`, and how they are named in tables."""


@pytest.mark.parametrize("backend", ["auto", "socket"])
@pytest.mark.parametrize("n", [10, 40_000])
@pytest.mark.parametrize("how", ["now", "later"])
def test_ranks_that_bring_as_many_elements_in_other_shapes_are_told(
    job: Job, how: str, n: int
) -> None:
    text = f"""
    TWICE = ah.ReduceOp.user(lambda one, other: one + other, name="twice")
    how = {{"async_op": True}} if {how!r} == "later" else {{}}
    n = {n}

    def outcome(code):
        try:
            work = eval(code)
            work is None or hasattr(work, "wait") and work.wait()
        except ah.CollectiveMismatch as error:
            return {{str(rank): row for rank, row in error.table.items()}}
        return "ended well"

    ah.init_process_group(timeout=20)
    me = ah.get_rank()
    several = ah.process_group()
    for name, (code, _) in {SHAPES!r}.items():
        for shapes in ((n // 5, 5), (n,)), ((n // 5, 5), (5, n // 5)), ((n, 1), (n,)):
            x = (np.arange(float(n)) + me).reshape(shapes[me == 2])
            w = np.arange(3.0 * n).reshape(3, n) - me
            before = x.tobytes(), w.tobytes()
            table = outcome(code)
            kept = before == (x.tobytes(), w.tobytes())
            y = np.arange(3.0)
            ah.all_reduce(y)
            right = y.tolist() == [0, 3, 6]
            tell("told", name=name, shapes=shapes, table=table, kept=kept, right=right)
    ah.destroy_process_group()
    """
    ranks = job(3, textwrap.dedent(text))
    for name, (_, row) in SHAPES.items():
        for _ in range(3):
            told = [rank.expect("told") for rank in ranks]
            assert [one["name"] for one in told] == [name] * 3
            table = told[0]["table"]
            assert table != "ended well", told
            assert [one["table"] for one in told] == [table] * 3
            for rank in range(3):
                shape = ",".join(map(str, told[0]["shapes"][rank == 2]))
                assert table[str(rank)].startswith(row.format(shape, whole=n)), table
            assert all(one["kept"] and one["right"] for one in told), told
    for rank in ranks:
        assert rank.ended() == 0, "".join(rank.errors)
