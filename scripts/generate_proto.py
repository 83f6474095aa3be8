"""Generate the Python code of every .proto file under pipeline/, and the gateway's Go code.

Python's code lies next to its .proto file. The gateway's comes from `pipeline_service.proto` by
the protoc plugins that its go.mod pins, and needs Go as its build does.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from collections.abc import Iterable, Sequence
from importlib.metadata import distribution
from pathlib import Path

from google.protobuf.descriptor_pb2 import FileDescriptorSet

from pipeline.gateway.build import find_go

ROOT = Path(__file__).resolve().parent.parent
GATEWAY = ROOT / "pipeline" / "gateway"
SERVICE = Path("pipeline/proto/pipeline_service.proto")
V2 = Path("pipeline/proto/inference_v2.proto")
V2_DESCRIPTORS = GATEWAY.relative_to(ROOT) / "internal" / "grpcedge" / "inference_v2.binpb"
GO_MODULE = "pipeline/gateway"
GO_PACKAGE = f"{GO_MODULE}/pipelinepb"
GO_PLUGINS = (
    "google.golang.org/protobuf/cmd/protoc-gen-go",
    "google.golang.org/grpc/cmd/protoc-gen-go-grpc",
    "github.com/grpc-ecosystem/grpc-gateway/v2/protoc-gen-grpc-gateway",
)


def proto_files() -> list[Path]:
    """Every .proto of the package, relative to the repository root."""
    return sorted(path.relative_to(ROOT) for path in (ROOT / "pipeline").rglob("*.proto"))


def has_service(proto: Path) -> bool:
    """Whether the file declares a service, for which there are stubs to write."""
    return re.search(r"^service\b", (ROOT / proto).read_text(encoding="utf-8"), re.M) is not None


def protoc(options: Iterable[str], protos: Iterable[Path]) -> None:
    """Run protoc with the repository root as the import root.

    So generated code imports itself by its full name (`from pipeline.proto import ...`). Raises
    RuntimeError when protoc refuses.
    """
    import grpc_tools
    from grpc_tools import protoc as compiler

    well_known = Path(grpc_tools.__file__).parent / "_proto"
    googles = distribution("googleapis-common-protos").locate_file("")  # google/api/*.proto
    paths = [f"--proto_path={path}" for path in (ROOT, well_known, googles)]
    if compiler.main(["protoc", *paths, *options, *map(Path.as_posix, protos)]) != 0:
        raise RuntimeError("protoc failed; its own message is above")


def generate_python(out: Path) -> None:
    """Write `_pb2.py` and `_pb2.pyi` of each .proto under `out`, `_pb2_grpc.py` of services."""
    files = proto_files()
    protoc([f"--python_out={out}", f"--pyi_out={out}"], files)
    protoc([f"--grpc_python_out={out}"], filter(has_service, files))
    for proto in files:
        stub = (out / proto).with_name(f"{proto.stem}_pb2.pyi")
        text = stub.read_text(encoding="utf-8")
        stub.write_text(_typed(text), encoding="utf-8")


def _typed(stub: str) -> str:
    """Its `Mapping`s with type arguments, and fields whose names are Python's words with a type.

    Without them checkers of strict users complain.
    """
    typed = re.sub(r"\b_Mapping\b(?=[],])", "_Mapping[str, _Any]", stub)
    typed = typed.replace("**kwargs)", "**kwargs: _Any)")
    if typed != stub:
        typed = typed.replace("from typing import ", "from typing import Any as _Any, ", 1)
    return typed


def generate_go(out: Path) -> None:
    """Write the gateway's `pipelinepb/*.go`, and what its reflection tells of the v2 protocol."""
    described = out / V2_DESCRIPTORS
    described.parent.mkdir(parents=True, exist_ok=True)
    protoc([f"--descriptor_set_out={described}"], [V2])
    from pipeline.proto.v2.service import service_file  # of what was generated above

    described.write_bytes(
        described.read_bytes() + FileDescriptorSet(file=[service_file()]).SerializeToString()
    )
    folder = out / GATEWAY.relative_to(ROOT)
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as plugins:
        find_go().run("build", "-o", plugins, *GO_PLUGINS)
        options = []
        for plugin in GO_PLUGINS:
            name = plugin.rpartition("protoc-gen-")[2]
            options += [
                f"--plugin=protoc-gen-{name}={plugins}/protoc-gen-{name}",
                f"--{name}_out={folder}",
                f"--{name}_opt=module={GO_MODULE}",
                f"--{name}_opt=M{SERVICE.as_posix()}={GO_PACKAGE}",
            ]
        protoc(options, [SERVICE])


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT, help="folder to write under")
    parser.add_argument("--only", choices=("python", "go"), help="generate no other language")
    given = parser.parse_args(argv)
    if given.only != "go":
        generate_python(given.out)
    if given.only != "python":
        generate_go(given.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
