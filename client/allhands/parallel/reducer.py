"""Reducer: averages gradients over the ranks while the step still computes.

    reducer = ah.Reducer(parameters)
    for batch in batches:
        for index, gradient in backward(parameters, batch):  # that of the last parameter first
            reducer.mark_ready(index, gradient)
        gradients = reducer.wait()

Gradients travel in buckets. A bucket is under way as soon as all its gradients are there, and
buckets begin in the same order on all ranks.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import field
from typing import Any

import numpy as np

from allhands.api import calls, collectives, default_world
from allhands.api.default_world import AnyGroup
from allhands.collectives.arguments import AnyArray
from allhands.collectives.reduction import ReduceOp
from allhands.deadlines import deadline
from allhands.engine.work.work import Work
from allhands.group.non_member import NonMember
from allhands.parallel import comm_hook, consistency_check
from allhands.parallel.bucket import Bucket, DenseBucket, SparseBucket
from allhands.parallel.bucket_layout import BucketLayout, assign_in_order, make_layouts
from allhands.parallel.comm_hook import CommHook
from allhands.parallel.grad_bucket import Gradient
from allhands.parallel.hooks.elementary import allreduce
from allhands.parallel.join import Join, Joinable, JoinHook
from allhands.parallel.parameters import Key, Parameters
from allhands_proto.quick_dataclass import dataclass

_MIB = 1 << 20


@dataclass(slots=True)
class _Step:
    """State of a step; gradients by index of their parameters."""

    order: list[int] = field(default_factory=list)
    """Those that were marked ready, the first one first."""
    unused: set[int] = field(default_factory=set)
    outputs: dict[int, Gradient] = field(default_factory=dict)
    """Arrays that averages are to be written to."""
    saved_gradients: dict[int, AnyArray] = field(default_factory=dict)
    """Gradients that unused parameters had, where their memory is needed."""
    launched: int = 0
    """How many buckets are under way."""


class Reducer(Joinable):
    """Averages gradients over a group, bucket by bucket; for one thread at a time.

    Every rank makes one, with parameters of the same shapes and dtypes, and marks the same ones
    ready in each step, in any order; which ones may differ with `find_unused_parameters`.

    Args:
        parameters: the parameters, by name or by place. Of them only shapes and dtypes count,
            except at the end of a `Join`: ranks that joined early then get the last joiner's.
        bucket_indices: the places of the parameters in each bucket; None: buckets of about
            `bucket_cap_mb` MiB each, the first one smaller so that it begins early, filled from
            the last parameter on, whose gradient backpropagation finds first.
        process_group: to average over; None: the world.
        find_unused_parameters: let ranks use different parameters in a step. Who did not use one
            counts with a gradient of zeros; what no rank has used keeps the gradient it had. It
            costs an all_reduce of a byte for each parameter.
        gradient_as_bucket_view: gradients live in the buckets, where collectives copy least:
            compute into `view(key)`. Else they are copied there and back.
        static_graph: every step uses the parameters that the first one used on this rank. What
            `find_unused_parameters` costs is then paid once; and unless gradients live in the
            buckets, these are filled anew in the order in which the first rank's came in that step.
        ignore: names or places of parameters that are left alone.
        sparse: those whose gradients are `ah.SparseArray`s of whole rows, as of a table from which
            each rank uses some. Each has a bucket of its own, and is never a view of it.

    Raises:
        TypeError: parameters of which there is no average.
        ValueError: no parameters, buckets that are not theirs; the ranks do not agree on them.
        RuntimeError: a bucket of several dtypes.
    """

    def __init__(
        self,
        parameters: Mapping[str, AnyArray] | Sequence[AnyArray],
        bucket_indices: Sequence[Sequence[int]] | None = None,
        *,
        process_group: AnyGroup = None,
        bucket_cap_mb: float = 25.0,
        first_bucket_mb: float = 1.0,
        find_unused_parameters: bool = False,
        gradient_as_bucket_view: bool = False,
        static_graph: bool = False,
        ignore: Collection[Key] = (),
        sparse: Collection[Key] = (),
    ) -> None:
        self._parameters = Parameters(parameters, ignore, sparse)
        if isinstance(process_group, NonMember):
            raise ValueError(f"this rank is not in {process_group}: it has nothing to average")
        self._group = process_group or default_world.default_group()
        self._finds_unused = find_unused_parameters
        self._uses_views = gradient_as_bucket_view
        self._is_static = static_graph
        self._may_rebuild = static_graph and bucket_indices is None and not gradient_as_bucket_view
        self._limits = [max(int(mb * _MIB), 1) for mb in (first_bucket_mb, bucket_cap_mb)]
        places = self._parameters.indices
        if bucket_indices is None:
            bucket_indices = self._assign_buckets(places[::-1])
        layouts = self._make_layouts(bucket_indices)
        options = (find_unused_parameters, static_graph, self._may_rebuild)
        described = (self._parameters.describe(), [one.parameters for one in layouts], options)
        consistency_check.check_consistency(
            self._group, "the parameters, buckets and options of a Reducer", described
        )
        self._build(layouts)
        self._hook: CommHook = allreduce
        self._state: Any = None
        self._has_hook = False
        self._step: _Step | None = None
        self._locally_unused: set[int] | None = None
        """What this rank leaves out in every step of a static graph; None: not known yet."""
        self._globally_unused: set[int] | None = None
        """What all ranks leave out in every step of a static graph; None: not known yet."""
        self.gradients: list[Gradient | None] = [None] * len(self._parameters.arrays)
        """The latest average of each parameter's gradient; None: there was none yet."""

    # ------------------------------------------------------------ a step

    def view(self, key: Key) -> AnyArray:
        """Return the memory for the gradient of a parameter, the same in every step.

        Raises:
            RuntimeError: gradients do not live in buckets.
        """
        if not self._uses_views:
            raise RuntimeError("only with gradient_as_bucket_view=True gradients live in buckets")
        place = self._parameters.get_index(key)
        if (view := self._get_view(place)) is None:
            raise RuntimeError(
                f"the gradient of {self._parameters.format_names([place])} is sparse"
            )
        return view

    def prepare_for_forward(self) -> None:
        """Check that the previous step has ended; optional.

        Raises:
            RuntimeError: gradients were marked ready and not waited for.
        """
        if self._step is not None:
            raise RuntimeError(
                "Expected to have finished reduction in the prior iteration before starting a new "
                f"one: {len(self._step.order)} gradients are marked ready, wait() for their average"
            )

    def prepare_for_backward(self, unused: Iterable[Key] = ()) -> None:
        """Name the parameters unused in this step, so that no bucket waits for their gradients.

        Optional: without this call, `wait` finds the unused parameters.

        Raises:
            RuntimeError: `find_unused_parameters` is off, so that no parameter may be unused.
        """
        places = {self._parameters.get_index(key) for key in unused} - self._left_out
        if places and not self._may_leave_out:
            raise RuntimeError(
                f"{self._parameters.format_names(places)} cannot be left out: make the Reducer "
                "with "
                "find_unused_parameters=True, so that the ranks agree on what is unused"
            )
        if self._step is not None and (ready := places.intersection(self._step.order)):
            raise RuntimeError(f"{self._parameters.format_names(ready)} is not unused: it is ready")
        step = self._ensure_step()
        self._leave_out(step, places)
        self._launch(step)

    def mark_ready(self, key: Key, gradient: Gradient | None = None) -> None:
        """Mark a parameter's gradient as computed; may launch its bucket.

        Args:
            key: the parameter.
            gradient: this rank's gradient, of the parameter's shape and dtype; the caller's memory,
                which `wait` overwrites with the average. Do not touch it until then. Where
                gradients live in buckets it is copied there, and None says that it is already
                there.

        Raises:
            TypeError, ValueError: the gradient does not match the parameter, or is read-only.
            RuntimeError: this step has it already; or any error of the hook, which ends the step.
        """
        place = self._parameters.get_index(key)
        bucket = self._bucket_by_index[place]
        if gradient is not None:
            self._parameters.check_gradient(place, gradient, is_written=not self._uses_views)
        elif not self._uses_views or place in self._parameters.sparse:
            raise TypeError("gradient must be an array unless gradient_as_bucket_view=True")
        if self._step is not None and place in self._step.order:
            raise RuntimeError(
                "Expected to mark a variable ready only once: "
                f"{self._parameters.format_names([place])} is ready in this step already"
            )
        if place in self._left_out:
            raise RuntimeError(
                f"{self._parameters.format_names([place])} was said to be unused in this step, or "
                "was not "
                "used in the first one of a static graph"
            )
        step = self._ensure_step()
        if gradient is not None:
            bucket.fill(place, gradient)
            step.outputs[place] = gradient
        step.order.append(place)
        bucket.missing_count -= 1
        self._launch(step)

    def wait(self) -> list[Gradient | None]:
        """End the step; return the average of every parameter's gradient, by place.

        What no rank has used keeps the array that it had, None at first.

        Raises:
            RuntimeError: parameters are missing that every rank has to use. The step goes on then.
            AllhandsError: a collective failed; gradients given are as they were, those that live in
                buckets are undefined. The step is over.
        """
        missing = self._find_missing(self._step)
        if missing and not self._may_leave_out:
            raise RuntimeError(
                "Expected to have finished reduction in this iteration: "
                f"{self._parameters.format_names(missing)} have no gradient yet. Mark them ready, "
                "or make "
                "the Reducer with find_unused_parameters=True"
            )
        self._finish(self._ensure_step(), is_own=True)
        return list(self.gradients)

    def register_comm_hook(self, state: Any, hook: CommHook) -> None:
        """Let `hook(state, bucket)`, which returns a future, average each bucket.

        It is called on the thread that marks gradients ready, bucket by bucket in the same order on
        all ranks, and returns without waiting. See `ah.hooks`.

        Raises:
            TypeError: it cannot be called.
            ValueError: its annotations are not those of a hook.
            RuntimeError: there is one already, or gradients are under way.
        """
        comm_hook.check_hook(hook)
        if self._has_hook:
            raise RuntimeError(
                "register_comm_hook or register_builtin_comm_hook can only be called once."
            )
        self.prepare_for_forward()
        self._hook, self._state, self._has_hook = hook, state, True

    # ------------------------------------------------------------ inside a Join

    def join_hook(self, **kwargs: Any) -> JoinHook:
        """Return the shadow of this rank: zero gradients, then the last joiner's values.

        Averages are over all ranks, those that have joined included.
        """
        return _ShadowHook(self)

    @property
    def join_process_group(self) -> AnyGroup:
        return self._group

    def shadow(self) -> None:
        """Make the collectives of one step with zero gradients; own gradients stay unchanged."""
        self._finish(self._start_step(), is_own=False)

    def take_over(self, is_source: bool) -> None:
        """Overwrite the parameters with those of the highest source rank."""
        source = np.array([self._group.rank if is_source else -1])
        collectives.all_reduce(source, ReduceOp.MAX, self._group)
        root = self._group.ranks[int(source[0])]
        for place in self._parameters.indices:
            collectives.broadcast(self._parameters.arrays[place], root, self._group)

    def _build(self, layouts: Sequence[BucketLayout]) -> None:
        """Make the buckets."""
        last = len(layouts) - 1
        self._buckets: list[Bucket] = []
        for index, layout in enumerate(layouts):
            is_sparse = layout.parameters[0] in self._parameters.sparse
            make = SparseBucket if is_sparse else DenseBucket
            arrays = self._parameters.arrays
            self._buckets.append(make(index, layout, arrays, index == last, self._group))
        self._bucket_by_index = {
            place: bucket for bucket in self._buckets for place in bucket.layout.parameters
        }

    def _assign_buckets(self, order: Sequence[int]) -> list[list[int]]:
        parameters = self._parameters
        return assign_in_order(order, parameters.arrays, self._limits, parameters.sparse)

    def _make_layouts(self, buckets: Sequence[Sequence[int]]) -> list[BucketLayout]:
        parameters = self._parameters
        return make_layouts(buckets, parameters.arrays, parameters.indices, parameters.sparse)

    def _get_view(self, index: int) -> AnyArray | None:
        """Return a gradient's memory inside its bucket; None if gradients live outside."""
        bucket = self._bucket_by_index[index]
        if not self._uses_views or not isinstance(bucket, DenseBucket):
            return None
        return bucket.views[index]

    @property
    def _left_out(self) -> set[int]:
        """Parameters that cannot be marked ready in this step."""
        now = set() if self._step is None else self._step.unused
        return now | (self._locally_unused or set()) | (self._globally_unused or set())

    @property
    def _may_leave_out(self) -> bool:
        """Whether parameters may be missing at the end of this step."""
        return self._locally_unused is None if self._is_static else self._finds_unused

    @property
    def _must_agree(self) -> bool:
        """Whether the ranks have to agree on unused parameters in this step."""
        return self._globally_unused is None if self._is_static else self._finds_unused

    def _ensure_step(self) -> _Step:
        """Return the current step, or begin a new step."""
        if self._step is None:
            calls.refuse_while_coalescing(self._group, "a step of a Reducer")
            Join.notify_join_context(self)
            left_out = self._left_out
            self._step = self._start_step()
            self._leave_out(self._step, left_out)
        return self._step

    def _start_step(self) -> _Step:
        for bucket in self._buckets:
            bucket.reset()
        return _Step()

    def _find_missing(self, step: _Step | None) -> set[int]:
        ready = set() if step is None else set(step.order)
        return set(self._parameters.indices) - ready - self._left_out

    def _leave_out(self, step: _Step, indices: Collection[int]) -> None:
        """Fill in zeros for parameters this rank does not use."""
        for place in indices:
            if (view := self._get_view(place)) is not None and self.gradients[place] is view:
                step.saved_gradients[place] = view.copy()
            self._bucket_by_index[place].clear(place)
            self._bucket_by_index[place].missing_count -= 1
        step.unused.update(indices)

    def _launch(self, step: _Step) -> None:
        """Start averaging full buckets, in order, up to the first not full."""
        while step.launched < len(self._buckets) and not self._buckets[step.launched].missing_count:
            try:
                self._buckets[step.launched].launch(self._hook, self._state)
            except BaseException:
                self._collect(step, None, is_over=True)
                self._step = None
                raise
            step.launched += 1

    def _finish(self, step: _Step, is_own: bool) -> None:
        """Launch the remaining buckets, wait, and store all averages."""
        places = set(self._parameters.indices)
        self._leave_out(step, places - set(step.order) - step.unused)
        self._launch(step)
        used, agreement = np.zeros(len(self.gradients), np.uint8), None
        if self._must_agree:
            used[step.order] = 1
            agreement = collectives.all_reduce(
                used, ReduceOp.MAX, self._group, async_op=True, label="used parameters"
            )
        error = self._collect(step, agreement, is_over=False)
        self._step = None
        if error is not None:
            raise error
        nowhere = self._globally_unused or set()
        if agreement is not None:
            nowhere = {place for place in places if not used[place]}
        for place in places:
            view = self._get_view(place)
            if is_own and place not in nowhere:
                wanted = step.outputs.get(place)
                self.gradients[place] = (
                    self._bucket_by_index[place].take_average(place, wanted)
                    if view is None
                    else view
                )
            elif place in step.saved_gradients and view is not None:
                view[...] = step.saved_gradients[place]
        if self._is_static:
            if is_own:
                self._locally_unused = step.unused
            if agreement is not None:
                self._globally_unused = nowhere
                self._rebuild(step.order)

    def _collect(self, step: _Step, agreement: Work | None, is_over: bool) -> Exception | None:
        """Wait until all calls of a step have ended; return the first error.

        Once something has, or where the step `is_over`, what would come next is not begun.
        """
        waits: list[Callable[[], object]] = [
            bucket.collect for bucket in self._buckets[: step.launched]
        ]
        if agreement is not None:
            waits.append(agreement.wait)
        error: Exception | None = None
        for wait in waits:
            try:
                with deadline(0) if is_over or error else nullcontext():
                    wait()
            except Exception as raised:
                error = error or raised
        return error

    def _rebuild(self, order: Sequence[int]) -> None:
        """Rebuild the buckets in the order of gradients on the first rank."""
        if not self._may_rebuild:
            return
        places = self._parameters.indices
        agreed = np.array([*order, *(one for one in places[::-1] if one not in order)])
        collectives.broadcast(agreed, self._group.ranks[0], self._group, label="order of gradients")
        buckets = self._assign_buckets(agreed.tolist())
        if buckets != [list(one.layout.parameters) for one in self._buckets]:
            self._build(self._make_layouts(buckets))


class _ShadowHook(JoinHook):
    """Shadow of the reducer of a rank out of inputs."""

    def __init__(self, reducer: Reducer) -> None:
        self._reducer = reducer

    def main_hook(self) -> None:
        self._reducer.shadow()

    def post_hook(self, is_last_joiner: bool) -> None:
        self._reducer.take_over(is_last_joiner)
