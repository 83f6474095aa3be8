"""Generate the Python code of every .proto file under pipeline/, next to it or into --out."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def proto_files() -> list[Path]:
    """Every .proto of the package, relative to the repository root."""
    return sorted(path.relative_to(ROOT) for path in (ROOT / "pipeline").rglob("*.proto"))


def has_service(proto: Path) -> bool:
    """Whether the file declares a service, for which there are stubs to write."""
    return re.search(r"^service\b", (ROOT / proto).read_text(encoding="utf-8"), re.M) is not None


def generate(out: Path) -> None:
    """Write `_pb2.py` and `_pb2.pyi` of each .proto under `out`, `_pb2_grpc.py` of services.

    The repository root is the import root, so that the generated code imports itself by its full
    name (`from pipeline.proto import ...`). Raises RuntimeError when protoc refuses.
    """
    import grpc_tools
    from grpc_tools import protoc

    well_known = Path(grpc_tools.__file__).parent / "_proto"
    files = proto_files()
    for options, paths in (
        ([f"--python_out={out}", f"--pyi_out={out}"], files),
        ([f"--grpc_python_out={out}"], filter(has_service, files)),
    ):
        arguments = ["protoc", f"--proto_path={ROOT}", f"--proto_path={well_known}", *options]
        if protoc.main([*arguments, *(path.as_posix() for path in paths)]) != 0:
            raise RuntimeError("protoc failed; its own message is above")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT, help="folder to write under")
    generate(parser.parse_args(argv).out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
