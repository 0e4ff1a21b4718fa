"""Ranks for tests, of three kinds: threads, forked processes and launched jobs.

- Threads of the test's process: `allhands.testing.run_threads`; with PyTorch's bookkeeping for
  each thread, `support.torch.thread_ranks`.
- Processes, forked where everything is imported: `Cluster`, with the fixtures `cluster` and `job`,
  calls a function of `programs` in each. `RankPool` keeps four of them for tests written for
  threads. `support.torch.ranks` forks the test itself, since bodies of PyTorch are closures.
- Launched jobs: `launchers` starts `allhands run` with a script of `programs`.

Apart from these, `inproc_world` and `faulty_world` of `allhands.testing` have no ranks with a plain
face: groups share the loop of the test, and time may be virtual. `LocalCluster` is under test.
"""
