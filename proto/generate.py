"""Generate the wire code from the .proto files; with --check, only report drift.

The generator is pinned (see the dependency group `dev`): code from an old one runs with every newer
protobuf and grpcio, code from a new one refuses older ones.
"""

import argparse
import sys
import tempfile
from pathlib import Path

from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent
PACKAGES = (Path("allhands_proto", "v1"), Path("allhands_proto", "etcd"))


def generate(target: Path) -> None:
    sources = sorted(
        str(path.relative_to(ROOT))
        for package in PACKAGES
        for path in (ROOT / package).glob("*.proto")
    )
    status = protoc.main(
        [
            "protoc",
            f"--proto_path={ROOT}",
            f"--python_out={target}",
            f"--grpc_python_out={target}",
            f"--mypy_out=quiet:{target}",
            f"--mypy_grpc_out=quiet:{target}",
            *sources,
        ]
    )
    if status != 0:
        sys.exit(f"protoc failed with status {status}")


def drift() -> list[str]:
    """Name the files whose checked-in text differs from the text generated now."""
    with tempfile.TemporaryDirectory() as scratch:
        generate(Path(scratch))
        fresh = _read_generated(Path(scratch))
    kept = _read_generated(ROOT)
    return sorted(name for name in fresh | kept if fresh.get(name) != kept.get(name))


def _read_generated(root: Path) -> dict[str, str]:
    """Read the generated files under a folder, by their names."""
    return {
        str(package / path.name): path.read_text()
        for package in PACKAGES
        for path in (root / package).glob("*_pb2*")
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing, exit 1 on drift")
    if not parser.parse_args().check:
        generate(ROOT)
        return
    if names := drift():
        sys.exit("generated code differs from its .proto: " + ", ".join(names))


if __name__ == "__main__":
    main()
