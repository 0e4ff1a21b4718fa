"""The first group of torch.distributed in a new interpreter, and the modules imported for it.

This is a script: its argument names a function.
"""

import gc
import sys
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist


def init_alone() -> None:
    dist.init_process_group("allhands", store=dist.HashStore(), rank=0, world_size=1)


def list_imports() -> None:
    """Print the modules imported by the first group and the first call."""
    before = {*sys.modules}
    init_alone()
    dist.all_reduce(torch.ones(2))
    print(*({*sys.modules} - before))
    dist.destroy_process_group()


def count_collections() -> None:
    """Print whether few garbage collections ran in imports, and the names of modules in excess."""
    generations = []

    def note(phase: str, info: dict[str, Any]) -> None:
        frame: FrameType | None = sys._getframe()
        while phase == "start" and frame is not None:
            if "importlib" in frame.f_code.co_filename:
                generations.append(info["generation"])
                break
            frame = frame.f_back

    gc.collect()
    gc.callbacks.append(note)
    init_alone()
    gc.callbacks.remove(note)
    assert gc.isenabled()
    print(len(generations) < 5, "allhands_server.embedded" in sys.modules)  # 78, else
    tools = ("grpc_reflection.v1alpha.reflection", "google.protobuf.descriptor_pb2", "typer")
    print([name for name in tools if name in sys.modules])
    dist.destroy_process_group()


if __name__ == "__main__":
    globals()[sys.argv[1]]()
