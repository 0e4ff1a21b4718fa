"""Reasons why tests of mpi4py fail over allhands, by file, class and test.

What is not listed here has to pass: see tests/mpi.
"""

_C = "it asks for what only a compiled MPI has: handles, headers or libraries of C"
_SPAWN = "processes are started by the launcher, not from within a world"
_PORTS = "worlds cannot be connected"
_DEVICE = (
    "its arrays say that they lie on a device; allhands looks whether the host can read them, and "
    "does"
)

REASONS = {
    "test_cffi": _C,
    "test_ctypes": _C,
    "test_mpiabi": _C,
    "test_mpiapi": _C,
    "test_doc": "docstrings are laid out otherwise than those of Cython",
    "test_dynproc": _PORTS,
    "test_spawn": _SPAWN,
    "test_msgspec.TestMessageSimpleCAIBuf.testBuffer": _DEVICE,
    "test_msgspec.TestMessageSimpleDLPackGPUBuf.testBuffer": _DEVICE,
    "test_msgspec.TestMessageSimpleDLPackGPUBufV0.testBuffer": _DEVICE,
    "test_objmodel.TestObjModel.testConstants": "what a class in Python gives has an owner",
    "test_package.TestMPIABI": _C,
    "test_package.TestDataFiles.testHeaders": _C,
    "test_toplevel.TestConfig.testGetInclude": _C,
}


def find_reason(test: str) -> str:
    """Return why a test fails; "": it should not."""
    name = test
    while name:
        if name in REASONS:
            return REASONS[name]
        name = name.rpartition(".")[0]
    return ""
