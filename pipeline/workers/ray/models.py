"""Models that the server sends: one copy in the store, a folder of files for each actor."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import numpy as np

from pipeline.errors import InitError
from pipeline.op import Op
from pipeline.workers.ray.objects import Bytes

_MOST_FILES = 1000


def model_files(op: Op, path: Path) -> Mapping[str, Bytes]:
    """Return the files of an Op's model, a file or a folder, by their paths from its folder.

    Raises:
        InitError: there are no files, or too many for a model.
    """
    files = (
        [path] if path.is_file() else sorted(entry for entry in path.rglob("*") if entry.is_file())
    )
    if not files or len(files) > _MOST_FILES:
        raise InitError(
            f"op.{op.name}.ray.model_from: store: expected a model's file or its folder of at most "
            f"{_MOST_FILES} files, found {len(files)} files at {path}"
        )
    return {
        str(file.relative_to(path.parent)): np.frombuffer(file.read_bytes(), np.uint8)
        for file in files
    }


def unpack_model(
    op: Op, names: Sequence[str], files: Sequence[Bytes], ends: contextlib.ExitStack
) -> None:
    """Write a model's files to a folder of the actor, and let the Op load it from there."""
    folder = Path(tempfile.mkdtemp(prefix="pipeline-model-"))
    ends.callback(shutil.rmtree, folder, ignore_errors=True)
    for name, data in zip(names, files, strict=True):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data.data)
    local = op.pipeline_config.local_service_conf
    assert local.model_config is not None, "else there were no files"
    here = str(folder / Path(local.model_config).name)
    local = msgspec.structs.replace(local, model_config=here)
    op.pipeline_config = msgspec.structs.replace(op.pipeline_config, local_service_conf=local)
