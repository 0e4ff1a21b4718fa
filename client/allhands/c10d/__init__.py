"""Process groups with the interface of torch.distributed's C++ core, on NumPy."""

from allhands.c10d.options import AllgatherOptions as AllgatherOptions
from allhands.c10d.options import AllreduceCoalescedOptions as AllreduceCoalescedOptions
from allhands.c10d.options import AllreduceOptions as AllreduceOptions
from allhands.c10d.options import AllToAllOptions as AllToAllOptions
from allhands.c10d.options import BarrierOptions as BarrierOptions
from allhands.c10d.options import BroadcastOptions as BroadcastOptions
from allhands.c10d.options import GatherOptions as GatherOptions
from allhands.c10d.options import GroupOptions as GroupOptions
from allhands.c10d.options import ReduceOptions as ReduceOptions
from allhands.c10d.options import ReduceScatterOptions as ReduceScatterOptions
from allhands.c10d.options import ScatterOptions as ScatterOptions
from allhands.c10d.process_group import ProcessGroup as ProcessGroup
