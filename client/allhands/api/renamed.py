"""Calls under the names that newer releases of torch.distributed give them."""

from allhands.api.collectives import all_gather_into_tensor, reduce_scatter_tensor

all_gather_single = all_gather_into_tensor
"""Another name of `all_gather_into_tensor`."""
reduce_scatter_single = reduce_scatter_tensor
"""Another name of `reduce_scatter_tensor`."""
