"""Ranks for tests, of three kinds: processes, threads, and ranks within one event loop.

- Processes. `processes.Cluster` forks them where everything is imported (`fork_server`), with the
  fixtures `cluster` and `job`: each calls a function of `programs`. `rank_pool` keeps four of them
  for tests written for threads. `support.torch.ranks` forks the test itself, since bodies of
  PyTorch are closures. `launchers` has them started by `allhands run`, which is under test then,
  as `LocalCluster` is in its own tests. What children write is read by `output`.
- Threads of the test's process: `allhands.testing.run_threads` and `on_threads`. With PyTorch's
  bookkeeping for each thread: `support.torch.thread_ranks`.
- Ranks within one event loop, without a plain face: `inproc_world` of `allhands.testing`, and
  `faulty_world`, at a real coordinator under a plan of faults; time may be virtual.

A test for threads runs on processes too where `tests/parity` has it so; one for processes of
PyTorch shares a run with others by `support.torch.shared_world`.
"""
