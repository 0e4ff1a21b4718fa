"""Table of the calls that PyTorch has names for: one row each. Pure data.

A call of a process group that PyTorch does not have needs no row: its profiler event has the name
of the method, and no tool of PyTorch's asks for the rest.
"""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class TorchCall:
    """Names of one call in PyTorch."""

    operation: str
    """Name of the call in this package's records."""
    method: str = ""
    """Of a process group; "": the call is recorded, and made by another method."""
    operator: str = ""
    """Of the call in the dispatcher, in the namespace c10d; "": it bypasses the dispatcher."""
    event: str = ""
    """Of the profiler, if other than `operation`."""
    recorded: str = ""
    """Name that the tools of the flight recorder know; "": none."""

    @property
    def event_name(self) -> str:
        return self.event or self.operation


TORCH_CALLS: Final = (
    TorchCall("all_gather", "allgather", "allgather_", recorded="all_gather"),
    TorchCall(
        "all_gather_coalesced", "allgather_coalesced", "allgather_coalesced_", event="all_gather"
    ),
    TorchCall(
        "all_gather_into_tensor",
        "all_gather_single",
        "_allgather_base_",
        recorded="all_gather_single",
    ),
    TorchCall(
        "all_gather_into_tensor_coalesced",
        "all_gather_single_coalesced",
        "allgather_into_tensor_coalesced_",
        recorded="all_gather_into_tensor_coalesced",
    ),
    TorchCall("all_reduce", "allreduce", "allreduce_", recorded="all_reduce"),
    TorchCall(
        "all_reduce_coalesced",
        "allreduce_coalesced",
        "allreduce_coalesced_",
        event="all_reduce",
        recorded="allreduce_coalesced",
    ),
    TorchCall("all_reduce_sparse", recorded="all_reduce"),
    TorchCall("all_to_all", "alltoall", "alltoall_", recorded="all_to_all"),
    TorchCall(
        "all_to_all_single",
        "all_to_all_single",
        "alltoall_base_",
        event="all_to_all",
        recorded="all_to_all",
    ),
    TorchCall("barrier", "barrier", recorded="barrier"),
    TorchCall("broadcast", "broadcast", "broadcast_", recorded="broadcast"),
    TorchCall("gather", "gather", "gather_", recorded="gather"),
    TorchCall("monitored_barrier", recorded="barrier"),
    TorchCall("recv", "recv", "recv_"),
    TorchCall("recv", "recv_anysource", "recv_any_source_", event="recvAnySource"),
    TorchCall("reduce", "reduce", "reduce_", recorded="reduce"),
    TorchCall("reduce_scatter", "reduce_scatter", "reduce_scatter_", recorded="reduce_scatter"),
    TorchCall(
        "reduce_scatter_tensor",
        "reduce_scatter_single",
        "_reduce_scatter_base_",
        recorded="reduce_scatter_single",
    ),
    TorchCall(
        "reduce_scatter_tensor_coalesced",
        "reduce_scatter_single_coalesced",
        "reduce_scatter_tensor_coalesced_",
        recorded="reduce_scatter_tensor_coalesced",
    ),
    TorchCall("scatter", "scatter", "scatter_", recorded="scatter"),
    TorchCall("send", "send", "send"),
)
