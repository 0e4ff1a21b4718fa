"""Communication hooks for a `Reducer`: how each bucket of gradients becomes its average."""

from allhands.parallel.hooks.elementary import allreduce, bf16_compress, fp16_compress, noop

__all__ = ["allreduce", "bf16_compress", "fp16_compress", "noop"]
