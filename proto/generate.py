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
PACKAGE = Path("allhands_proto", "v1")


def generate(target: Path) -> None:
    sources = sorted(str(path.relative_to(ROOT)) for path in (ROOT / PACKAGE).glob("*.proto"))
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
        fresh = {path.name: path.read_text() for path in Path(scratch, PACKAGE).iterdir()}
    kept = {path.name: path.read_text() for path in (ROOT / PACKAGE).glob("*_pb2*")}
    return sorted(name for name in fresh | kept if fresh.get(name) != kept.get(name))


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
