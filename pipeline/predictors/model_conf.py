"""Reads and writes Paddle Serving's descriptions of models: inputs and outputs by alias.

These are `serving_client_conf.prototxt` and `serving_server_conf.prototxt`: a `GeneralModelConfig`
(general_model_config.proto) in protobuf's text format.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from google.protobuf import text_format

from pipeline.errors import InitError, PayloadTypeError
from pipeline.predictors.base import TensorSpec
from pipeline.predictors.signature import ModelSignature
from pipeline.proto.brpc.general_model import dtype_of, elem_type_of, value_to_tensor
from pipeline.proto.general_model_config_pb2 import FeedVar, FetchVar, GeneralModelConfig

CLIENT_FILE = "serving_client_conf.prototxt"
SERVER_FILE = "serving_server_conf.prototxt"


@dataclass(frozen=True, slots=True)
class Var:
    """One input or output of a model.

    `name` is the model's name, `alias` the clients' name. `elem_type` is a
    `proto.brpc.general_model.BrpcElemType`. `shape` has no batch dimension and is as the exporter
    wrote it: -1 allows any size, but some models that take any size do not have it.
    """

    name: str
    alias: str
    is_lod: bool
    elem_type: int
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ModelConf:
    """The inputs and outputs of one model, or of several in a row."""

    feeds: tuple[Var, ...]
    fetches: tuple[Var, ...]


def read_model_conf(path: Path | Sequence[Path], file_name: str = CLIENT_FILE) -> ModelConf:
    """Return the configuration of a model.

    Args:
        path: the file, or the folder that has it as `file_name`; or those of several models in a
            row: the first has the feeds, the last has the fetches.

    Raises InitError: a file is missing or not such a configuration; the text names file and line.
    """
    paths = [path] if isinstance(path, str | Path) else list(path)
    if not paths:
        raise InitError(f"no model configuration is named; give the path of a {file_name}")
    files = [_file(Path(path), file_name) for path in paths]
    configs = [_parse(file) for file in files]
    return ModelConf(
        feeds=_vars(files[0], "feed_var", configs[0].feed_var),
        fetches=_vars(files[-1], "fetch_var", configs[-1].fetch_var),
    )


def conf_beside(model: Path) -> ModelConf | None:
    """Return the server's configuration in a model's folder or next to its file; None without one.

    Raises InitError: as `read_model_conf`.
    """
    file = (model if model.is_dir() else model.parent) / SERVER_FILE
    return read_model_conf(file) if file.is_file() else None


def _file(path: Path, file_name: str) -> Path:
    file = path / file_name if path.is_dir() else path
    if not file.is_file():
        raise InitError(f"model configuration {file} is not there (looked from {Path.cwd()})")
    return file


def _parse(file: Path) -> GeneralModelConfig:
    try:
        text = file.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise InitError(f"model configuration {file} cannot be read: {error}") from error
    try:
        return text_format.Parse(text, GeneralModelConfig())
    except text_format.ParseError as error:
        # The error's own text begins with "line:column : ".
        raise InitError(f"model configuration {file}:{error}") from error


def _vars(file: Path, block: str, blocks: Sequence[Any]) -> tuple[Var, ...]:
    """Return the variables of a block; check aliases, and the types of feeds."""
    if not blocks:
        raise InitError(f"model configuration {file} has no {block}")
    variables: dict[str, Var] = {}
    for number, raw in enumerate(blocks, 1):
        is_fed = block == "feed_var"
        elem_type = raw.feed_type if is_fed else raw.fetch_type
        alias = raw.alias_name or raw.name
        var = Var(raw.name, alias, raw.is_lod_tensor, elem_type, tuple(raw.shape))
        if problem := _problem(var, variables, is_fed):
            raise InitError(f"model configuration {file}: {block} number {number} {problem}")
        variables[alias] = var
    return tuple(variables.values())


def _problem(var: Var, known: Collection[str], is_fed: bool) -> str:
    """Return the fault of a variable; "" without one."""
    if not var.alias:
        return "has neither name nor alias_name"
    if var.alias in known:
        return f"has the alias_name {var.alias!r} of one before it"
    try:
        if is_fed:  # a fetch_type is not used: the answer has its own
            dtype_of(var.elem_type)
    except ValueError as error:
        return f"({var.alias!r}): {error}"
    return ""


# Writing --------------------------------------------------------------------------------------


def conf_of(signature: ModelSignature, names: ModelConf | None = None) -> ModelConf:
    """Return the client configuration of a loaded model.

    Types, shapes and default outputs are those of the signature.

    Args:
        signature: signature of the model.
        names: aliases, and which variables have LoD; without an alias clients use the name in the
            signature.

    Raises InitError: the general model service cannot carry the type of an input or output.
    """
    feeds, fetches = (names.feeds, names.fetches) if names else ((), ())
    outputs = {spec.name: spec for spec in signature.outputs}
    fetched = [outputs[name] for name in signature.fetch_names]
    return ModelConf(
        feeds=_described(signature, "input", signature.inputs, feeds, elem_type_of),
        fetches=_described(signature, "output", fetched, fetches, _answered_as),
    )


def write_client_conf(folder: Path, conf: ModelConf) -> None:
    """Write `conf` into an existing folder, atomically for concurrent readers.

    Raises InitError: it cannot be written.
    """
    draft = folder / f".{CLIENT_FILE}.{secrets.token_hex(8)}"
    try:
        try:
            draft.write_text(model_conf_text(conf), encoding="utf-8")
            os.replace(draft, folder / CLIENT_FILE)
        finally:
            draft.unlink(missing_ok=True)
    except OSError as error:
        raise InitError(f"{folder / CLIENT_FILE} cannot be written: {error}") from error


def model_conf_text(conf: ModelConf) -> str:
    """Return `conf` as `read_model_conf` reads it from a file (UTF-8)."""
    config = GeneralModelConfig(
        feed_var=[FeedVar(feed_type=var.elem_type, **_common(var)) for var in conf.feeds],
        fetch_var=[FetchVar(fetch_type=var.elem_type, **_common(var)) for var in conf.fetches],
    )
    return text_format.MessageToString(config, as_utf8=True)


def _common(var: Var) -> dict[str, Any]:
    """Return the fields that both kinds of variables have."""
    return {
        "name": var.name,
        "alias_name": var.alias,
        "is_lod_tensor": var.is_lod,
        "shape": var.shape,
    }


def _described(
    signature: ModelSignature,
    kind: str,
    specs: Iterable[TensorSpec],
    given: Sequence[Var],
    number_of: Callable[[np.dtype[Any]], int],
) -> tuple[Var, ...]:
    known = {var.name: var for var in given} | {var.alias: var for var in given}
    variables: dict[str, Var] = {}
    for spec in specs:
        var = known.get(spec.name) or Var(spec.name, spec.name, False, 0, ())
        try:
            elem_type = number_of(spec.dtype)
        except (ValueError, PayloadTypeError) as error:
            raise InitError(
                f"[{signature.model}] the {kind} {spec.name!r} is {spec.dtype}, which has no place "
                f"in the general model service and so none in its {CLIENT_FILE}: export the model "
                "with another type there"
            ) from error
        shape = var.shape
        if spec.shape is not None:  # without the batch
            shape = tuple(dim if isinstance(dim, int) else -1 for dim in spec.shape[1:])
        variables[var.alias] = replace(var, elem_type=elem_type, shape=shape)
    return tuple(variables.values())


def _answered_as(dtype: np.dtype[Any]) -> int:
    """Return the elem_type of an answer: some types are sent as wider ones."""
    return value_to_tensor("", "", np.empty(0, dtype)).elem_type
