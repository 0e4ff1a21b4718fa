"""Causes for failures of PyTorch's tests, by the failure's text."""

import re

_PLACE = "looks at devices, all of which are the processor here"
_GPU = "asks for what only a GPU has"

_CAUSES = {
    r"SyncBatchNorm layers only work with GPU": "SyncBatchNorm has no kernels for the processor",
    r"doesn't have NCCL built in": "makes a second group over NCCL, which the wheel lacks",
    r"Cannot access accelerator device when none is available": _GPU,
    r"cpu backend doesn't support events": _GPU,
    r"None mismatch: None is not 0": _PLACE,
    r"has no attribute 'ProcessGroupNCCL'": "asks for a class of NCCL's",
    r"is this rank itself": "sends to itself, which neither of both lets it",
    r"Gloo::allgather: invalid tensor size": "Gloo takes no stacked output",
    r"allgather: invalid tensor size": "wants all_gather of several shapes, which NCCL alone takes",
    r"Gloo::alltoall: invalid tensor size": "Gloo wants equal shapes from all_to_all of lists",
    r"Gloo.cpp.*Check failed: outputShape": "Gloo takes no stacked input",
    r"terminated or timed out after": "takes longer than 90 s",
    r"String comparison failed: '' != '0'": _PLACE,
    r"has no attribute '_round_robin_process_groups'": "PyTorch has it no more",
    r"CURRENT_PATCHER is None": "make_fx of PyTorch 2.13 is not for several threads at a time",
    r"tensor\(\[2., 2., 2., 2.\]\) is not None": "PyTorch 2.13 differentiates all_reduce",
    r"But found.*all_to_all_single.default|to not find .*all_to_all_single.default": "inductor of "
    "PyTorch 2.13 names the call again where it checks what came of it",
    r"Split sizes doesn't match total dim 0 size": "splits [1, 1] of three rows, which the fake "
    "backend of PyTorch 2.13 does not take either",
}


def cause(why: str) -> str:
    """Return the cause of a failure; "? " and the failure's last line if unknown."""
    for said, found in _CAUSES.items():
        if re.search(said, why):
            return found
    errors = re.findall(r"^(?:\w+\.)*\w*(?:Error|Exception)\b.*$", why, re.MULTILINE)
    last = next((one for one in errors if "Process " not in one), why.strip().splitlines()[-1])
    return "? " + last.replace("|", "/")[:200]
