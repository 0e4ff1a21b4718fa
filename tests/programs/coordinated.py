"""Processes for a test to kill: a member with its own wire code, a starter of ranks.

This is a script: its first argument names a function, the others are for that.
"""

import queue
import sys
import time

import grpc

from allhands.testing import LocalCluster
from allhands_proto.v1 import coordinator_pb2 as wire
from allhands_proto.v1 import coordinator_pb2_grpc


def stay_in_a_session(port: str, token: str, job: str) -> None:
    """Join, print the name of each event, and wait to be killed."""
    says: queue.SimpleQueue[wire.SessionRequest | None] = queue.SimpleQueue()
    join = wire.Join(job=job, rank=1, world_size=3, host="doomed", pid=1, port=1)
    says.put(wire.SessionRequest(join=join))
    stub = coordinator_pb2_grpc.CoordinatorStub(grpc.insecure_channel(f"127.0.0.1:{port}"))
    metadata = (("authorization", f"Bearer {token}"),)
    for event in stub.Session(iter(says.get, None), metadata=metadata):
        if not event.HasField("caller_refused"):  # what strangers of other tests did
            print(event.WhichOneof("event"), flush=True)


def sleep_for_long() -> None:
    time.sleep(600)


def start_ranks_that_sleep() -> None:
    with LocalCluster(2) as cluster:
        print(*cluster.start(sleep_for_long).pids, flush=True)
        time.sleep(600)


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
