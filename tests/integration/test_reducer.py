"""Reducers of real processes: buckets in shared memory, and over links."""

import pytest

from support.ranks.processes import BACKENDS, Job

_TRAIN = """
ah.init_process_group()
rank, size = ah.get_rank(), ah.get_world_size()
parameters = [np.zeros((300, 40), np.float32), np.zeros(40)]
reducer = ah.Reducer(parameters, gradient_as_bucket_view=True)
state = ah.hooks.Int8State()
compressing = ah.Reducer(parameters[:1])
compressing.register_comm_hook(state, ah.hooks.int8)
averages = []
for step in range(3):
    for place in (1, 0):
        reducer.view(place)[...] = (rank + 1) * (step + 1)
        reducer.mark_ready(place)
    averages.append([float(one.max()) for one in reducer.wait()])
    assert all(one.min() == one.max() for one in reducer.gradients)
gradient = np.full((300, 40), rank + 1.0, np.float32)
compressing.mark_ready(0, gradient)
compressing.wait()
tell("done", averages=averages, int8=float(gradient.max()))
ah.destroy_process_group()
"""


@pytest.mark.parametrize("backend", BACKENDS)
def test_processes_average_gradients_in_buckets(job: Job, backend: str):
    for rank in job(3, _TRAIN):
        told = rank.expect("done")
        assert told["averages"] == [[2.0, 2.0], [4.0, 4.0], [6.0, 6.0]]
        assert told["int8"] == pytest.approx(2, rel=1e-2)
        assert rank.ended() == 0
