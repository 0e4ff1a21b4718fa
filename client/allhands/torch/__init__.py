"""PyTorch on allhands: `torch.distributed.init_process_group("allhands")`.

Importing it registers the backend, for "allhands" and for "cpu:allhands"; where the package is
installed, `import torch` does so by itself. Unmodified programs run: what stands on c10d, such as
DistributedDataParallel, is PyTorch's own, over groups of this package.
"""

from allhands.torch.backend import register as register

register()
