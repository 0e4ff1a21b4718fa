"""Joining the world of a system; imports that system's module alone."""

from pathlib import Path

from allhands.bench.systems.names import ALLHANDS, AWAITED, MPI, TCP, TORCH
from allhands.bench.systems.system import System


def join_system(name: str, store_file: Path) -> System:
    """Join the world of this process's contender; those of PyTorch find each other in a file."""
    if name in MPI:
        from allhands.bench.systems.mpi import MpiSystem

        return MpiSystem()
    if name == TCP:
        from allhands.bench.systems.tcp_loop import TcpLoop

        return TcpLoop()
    if name in AWAITED:
        from allhands.bench.systems.awaited import AwaitedSystem

        return AwaitedSystem(name)
    if name in ALLHANDS and name != TORCH:
        from allhands.bench.systems.allhands_calls import AllhandsSystem

        return AllhandsSystem(name)
    from allhands.bench.systems.torch_distributed import TorchSystem

    return TorchSystem("allhands" if name == TORCH else name, store_file)
