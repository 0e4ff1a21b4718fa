"""Forked children of ranks, of stores and of programs that were ranks: they work, or are told no.

Each child collects its garbage, does its part, and ends as interpreters do. One that hangs tells
where, and the test with it.
"""

import textwrap

import pytest

from support.ranks.addresses import free_port
from support.ranks.processes import Cluster, Job, Process

FORKS = """
import faulthandler, gc, traceback

HANG_SECONDS = 40

class Forked:
    '''A child that runs `body` and tells what it returns; ended as interpreters end.'''

    def __init__(self, body, *arguments):
        self.reading, writing = os.pipe()
        in_thread = threading.current_thread() is not threading.main_thread()
        sys.stdout.flush()
        self.pid = os.fork()
        if self.pid:
            os.close(writing)
            return
        faulthandler.register(signal.SIGALRM, chain=True)
        signal.alarm(HANG_SECONDS)
        gc.enable()
        gc.collect()
        try:
            said = body(*arguments)
        except Exception:
            said = {"raised": traceback.format_exc()}
        gc.collect()
        os.write(writing, json.dumps(said).encode())
        os.close(writing)
        if in_thread:
            os._exit(0)
        sys.exit(0)

    def ended(self):
        with open(self.reading, "rb") as told:
            said = told.read()
        status = os.waitpid(self.pid, 0)[1]
        return status, json.loads(said or "null")

def world(path, rank, size):
    '''Be a rank of a world that meets in a file; return the sum of its ranks.'''
    ah.init_process_group(f"file://{path}", rank=rank, world_size=size, timeout=20)
    x = np.array([rank + 1.0])
    ah.all_reduce(x)
    ah.destroy_process_group()
    return x[0]

def children_of(path):
    '''Let two children make a world; return how they ended.'''
    children = [Forked(world, path, rank, 2) for rank in range(2)]
    return [child.ended() for child in children]

def sums(x):
    ah.all_reduce(x)
    return list(x)
"""

WELL = [[0, 3.0], [0, 3.0]]


def script(text: str) -> str:
    return FORKS + textwrap.dedent(text)


def finished(processes: list[Process]) -> None:
    for process in processes:
        assert process.ended() == 0, "".join(process.errors)


def test_children_make_a_world_when_their_parent_has_left_one(cluster: Cluster) -> None:
    parent = cluster.start(
        script("""
        import tempfile
        folder = tempfile.mkdtemp()
        first = world(folder + "/first", 0, 1)
        tell("children", ended=children_of(folder + "/second"), first=first)
        tell("again", first=world(folder + "/third", 0, 1))
        """)
    )
    assert parent.expect("children") == {"what": "children", "ended": WELL, "first": 1.0}
    assert parent.expect("again")["first"] == 1.0
    finished([parent])


def test_children_make_a_world_while_their_parent_is_in_one(job: Job) -> None:
    ranks = job(
        2,
        script("""
        import tempfile
        ah.init_process_group(timeout=20, backend=os.environ["ALLHANDS_BACKEND"])
        x = np.ones(3)
        ah.all_reduce(x)
        ended = children_of(tempfile.mkdtemp() + "/store")
        ah.all_reduce(x)
        tell("children", ended=ended, parents=list(x))
        ah.destroy_process_group()
        """),
    )
    for rank in ranks:
        assert rank.expect("children") == {
            "what": "children",
            "ended": WELL,
            "parents": [4.0, 4.0, 4.0],
        }
    finished(ranks)


def test_children_of_children_make_a_world(cluster: Cluster) -> None:
    parent = cluster.start(
        script("""
        import tempfile
        folder = tempfile.mkdtemp()

        def generation(depth):
            mine = world(f"{folder}/{depth}", 0, 1)
            below = Forked(generation, depth - 1).ended() if depth else None
            return [mine, below, world(f"{folder}/{depth}-again", 0, 1)]

        tell("told", all=generation(2))
        """)
    )
    youngest = [1.0, None, 1.0]
    middle = [1.0, [0, youngest], 1.0]
    assert parent.expect("told")["all"] == [1.0, [0, middle], 1.0]
    finished([parent])


def test_children_of_threads_that_are_or_were_ranks_make_a_world(cluster: Cluster) -> None:
    parent = cluster.start(
        script("""
        import tempfile
        from allhands.testing import run_threads
        folder = tempfile.mkdtemp()

        def body(rank):
            x = np.ones(2)
            ah.all_reduce(x)
            ended = children_of(folder + "/inside") if rank == 0 else None
            ah.all_reduce(x)
            return [list(x), ended]

        inside = run_threads(2)(body)
        tell("told", inside=inside, after=children_of(folder + "/after"))
        """)
    )
    told = parent.expect("told")
    assert told["inside"] == [[[4.0, 4.0], WELL], [[4.0, 4.0], None]]
    assert told["after"] == WELL
    finished([parent])


@pytest.mark.parametrize("by", ["store", "port"])
def test_workers_that_the_host_of_a_store_forks_meet_there(cluster: Cluster, by: str) -> None:
    launcher = cluster.start(
        script(f"""
        store = ah.TCPStore("127.0.0.1", 0, is_master=True, timeout=20)
        store.set("from", b"launcher")

        def worker(rank):
            mine = store if {by!r} == "store" else ah.TCPStore("127.0.0.1", store.port, timeout=20)
            found = mine.get("from").decode()
            ah.init_process_group(store=mine, rank=rank, world_size=2, timeout=20)
            x = np.array([rank + 1.0])
            ah.all_reduce(x)
            mine.set(f"from {{rank}}", b"worker")
            ah.destroy_process_group()
            mine.close()
            return [found, x[0]]

        workers = [Forked(worker, rank) for rank in range(2)]
        ended = [one.ended() for one in workers]
        store.wait(["from 0", "from 1"])
        tell("workers", ended=ended, kept=store.get("from").decode())
        """)
    )
    told = launcher.expect("workers")
    assert told["ended"] == [[0, ["launcher", 3.0]], [0, ["launcher", 3.0]]]
    assert told["kept"] == "launcher"
    finished([launcher])


def test_what_a_world_leaves_does_not_hold_up_a_child_that_collects_it(cluster: Cluster) -> None:
    parent = cluster.start(
        script(f"""
        gc.collect()
        gc.disable()  # what the world leaves is there when the child is forked
        ah.init_process_group("tcp://127.0.0.1:{free_port()}", rank=0, world_size=1, timeout=20)
        ah.barrier()
        ah.destroy_process_group()
        tell("child", ended=Forked(lambda: 1).ended())
        """)
    )
    assert parent.expect("child")["ended"] == [0, 1]
    finished([parent])


def test_a_child_that_lets_go_of_a_store_and_a_world_leaves_them_to_its_parent(
    cluster: Cluster,
) -> None:
    parent = cluster.start(
        script(f"""
        ah.init_process_group("tcp://127.0.0.1:{free_port()}", rank=0, world_size=1, timeout=20)
        ah.barrier()
        store = ah.TCPStore("127.0.0.1", 0, is_master=True, timeout=20)
        client = ah.TCPStore("127.0.0.1", store.port, timeout=20)
        client.set("key", b"1")

        def child():
            global store, client
            ah.destroy_process_group()
            store.close()
            store = client = None  # the last references here
            return gc.collect() >= 0

        ended = Forked(child).ended()
        ah.barrier()
        tell("child", ended=ended, key=client.get("key").decode())
        ah.destroy_process_group()
        """)
    )
    assert parent.expect("child") == {"what": "child", "ended": [0, True], "key": "1"}
    finished([parent])


@pytest.mark.parametrize("backend", ["auto", "socket"], indirect=True)
def test_what_a_child_inherits_of_a_world_refuses_by_name(job: Job) -> None:
    ranks = job(
        2,
        script("""
        ah.init_process_group(timeout=20, backend=os.environ["ALLHANDS_BACKEND"])
        me = ah.get_rank()
        x, y = np.full(3, me + 1.0), np.full(3, me + 1.0)
        ah.barrier()
        part = ah.new_group([0, 1])
        ah.barrier(part)
        sent = ah.irecv(np.zeros(2), 1 - me, tag=9)
        call = ah.all_reduce_init(y)
        posted = ah.all_reduce(x, async_op=True)

        def child():
            world = ah.default_group()
            told = {
                "a plain call": lambda: ah.all_reduce(np.ones(3)),
                "a call behind": lambda: ah.all_reduce(np.ones(3), async_op=True),
                "a large call": lambda: ah.all_reduce(np.ones(1 << 20)),
                "a gather": lambda: ah.all_gather(list(np.ones((2, 3))), np.ones(3)),
                "an object": lambda: ah.broadcast_object_list([None]),
                "a message": lambda: ah.send(np.ones(3), 1 - me),
                "a monitored barrier": lambda: ah.monitored_barrier(),
                "a part": lambda: ah.barrier(part),
                "a method": lambda: world.all_reduce(np.ones(3)).wait(),
                "a prepared call": lambda: call.start(),
                "a call in flight": lambda: posted.wait(),
                "its result": lambda: posted.result(),
                "its future": lambda: posted.get_future().wait(),
                "a message in flight": lambda: sent.wait(timeout=5),
                "memory": lambda: ah.empty(10),
                "a new group": lambda: ah.new_group(),
                "an abort": lambda: ah.abort("because"),
            }
            known = ah.is_initialized(), ah.get_rank(), ah.get_world_size()
            said = {name: failure(act) for name, act in told.items()}
            bad = {
                name: one for name, one in said.items()
                if one["error"] != "ForkedProcess" or "init_process_group()" not in one["text"]
            }
            ah.destroy_process_group(part)
            ah.destroy_process_group()
            return [known == (True, me, 2), bad, ah.is_initialized()]

        ended = Forked(child).ended()
        posted.wait()
        call.start()
        call.wait()
        ah.send(np.ones(2), 1 - me, tag=9)
        sent.wait()
        ah.barrier(part)
        tell("told", child=ended, sums=[list(x), list(y)])
        ah.destroy_process_group()
        """),
    )
    for rank in ranks:
        told = rank.expect("told")
        assert told["child"] == [0, [True, {}, False]], told
        assert told["sums"] == [[3.0] * 3] * 2
    finished(ranks)


def test_a_prepared_call_under_way_is_not_ended_by_a_child(job: Job) -> None:
    ranks = job(
        2,
        script("""
        ah.init_process_group(timeout=20, backend=os.environ["ALLHANDS_BACKEND"])
        me = ah.get_rank()
        x = np.full(3, me + 1.0)
        ah.barrier()
        call = ah.all_reduce_init(x)
        call.start()
        ended = Forked(lambda: [failure(call.wait)["error"], list(x)]).ended()
        call.wait()
        tell("told", child=ended, sum=list(x))
        ah.destroy_process_group()
        """),
    )
    for me, rank in enumerate(ranks):
        told = rank.expect("told")
        assert told["child"] == [0, ["ForkedProcess", [me + 1.0] * 3]]
        assert told["sum"] == [3.0] * 3
    finished(ranks)


def test_a_child_that_closes_a_client_leaves_its_parents_calls_alone(cluster: Cluster) -> None:
    parent = cluster.start(
        script("""
        control = ah.connect()
        control.put("key", b"1")
        waiting = threading.Thread(target=lambda: got.append(control.get("late", wait=True)))
        got = []
        waiting.start()
        until(lambda: not control._kv_pool._idle)
        ended = Forked(control.close).ended()
        control.put("late", b"2")
        waiting.join()
        tell("told", child=ended, got=[one.decode() for one in got])
        """),
        ALLHANDS_URL=cluster.daemon() + "/job",
    )
    assert parent.expect("told") == {"what": "told", "child": [0, None], "got": ["2"]}
    finished([parent])


def test_a_client_that_calls_by_grpc_does_so_in_a_child_too(cluster: Cluster) -> None:
    parent = cluster.start(
        script("""
        from allhands.coordinator.endpoint import find_coordinator
        from allhands.coordinator.client import Control
        endpoint = find_coordinator(None, os.environ)
        control = Control(endpoint, job="job", use_lines=False)
        control.put("key", b"1")
        ended = Forked(lambda: [control.get("key").decode(), control.add("n", 1)]).ended()
        tell("told", child=ended, n=control.add("n", 1))
        """),
        ALLHANDS_URL=cluster.daemon() + "/job",
    )
    assert parent.expect("told") == {"what": "told", "child": [0, ["1", 1]], "n": 2}
    finished([parent])


def test_where_grpc_cannot_be_loaded_again_a_child_is_told_what_to_do(cluster: Cluster) -> None:
    parent = cluster.start(
        script("""
        import tempfile
        folder = tempfile.mkdtemp()
        world(folder + "/first", 0, 1)

        def child():
            def refuse(*_):
                raise OSError("no memory for files")
            os.memfd_create = refuse
            return failure(lambda: world(folder + "/second", 0, 1))

        tell("told", child=Forked(child).ended())
        """)
    )
    status, failure = parent.expect("told")["child"]
    assert (status, failure["error"]) == (0, "RuntimeError"), failure
    assert "forked" in failure["text"]
    assert "spawn" in failure["text"]
    finished([parent])
