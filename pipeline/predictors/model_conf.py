"""Reads what Paddle Serving writes beside an exported model: its inputs and outputs by alias.

That is `serving_client_conf.prototxt` and `serving_server_conf.prototxt`, a `GeneralModelConfig`
(general_model_config.proto) in protobuf's text format.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from google.protobuf import text_format

from pipeline.errors import InitError
from pipeline.proto.general_model import dtype_of
from pipeline.proto.general_model_config_pb2 import FeedVar, FetchVar, GeneralModelConfig

CLIENT_FILE = "serving_client_conf.prototxt"
SERVER_FILE = "serving_server_conf.prototxt"

_FEED, _FETCH = "feed_var", "fetch_var"


@dataclass(frozen=True, slots=True)
class Var:
    """One input or output of a model.

    `name` is the model's own, `alias` the one that clients use. `elem_type` is a
    `proto.general_model.ElemType`. `shape` is without the batch, as the exporter wrote it: it says
    -1 where any size will do, but not every model that takes any size says so.
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
    """The configuration of a model.

    Args:
        path: the file, or the folder that holds it under `file_name`; of several models in a
            row, all of them: the feeds are the first one's, the fetches the last one's.

    Raises:
        InitError: a file is missing or is no such configuration; the text names file and line.
    """
    paths = [path] if isinstance(path, str | Path) else list(path)
    if not paths:
        raise InitError(f"no model configuration is named; give the path of a {file_name}")
    files = [_file(Path(each), file_name) for each in paths]
    configs = [_parse(file) for file in files]
    return ModelConf(
        feeds=_vars(files[0], _FEED, map(_feed, configs[0].feed_var)),
        fetches=_vars(files[-1], _FETCH, map(_fetch, configs[-1].fetch_var)),
    )


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


def _feed(var: FeedVar) -> Var:
    alias = var.alias_name or var.name
    return Var(var.name, alias, var.is_lod_tensor, var.feed_type, tuple(var.shape))


def _fetch(var: FetchVar) -> Var:
    alias = var.alias_name or var.name
    return Var(var.name, alias, var.is_lod_tensor, var.fetch_type, tuple(var.shape))


def _vars(file: Path, block: str, found: Iterable[Var]) -> tuple[Var, ...]:
    """`found`, each with an alias of its own and, where it is fed, of a type that there is."""
    variables = tuple(found)
    if not variables:
        raise InitError(f"model configuration {file} has no {block}")
    seen: set[str] = set()
    for number, var in enumerate(variables, 1):
        problem = _name_problem(var, seen)
        if not problem and block == _FEED:
            problem = _type_problem(var)  # nobody looks at a fetch_type: the answer has its own
        if problem:
            raise InitError(f"model configuration {file}: {block} number {number} {problem}")
        seen.add(var.alias)
    return variables


def _name_problem(var: Var, seen: set[str]) -> str:
    """What is wrong with the alias; empty when nothing is."""
    if not var.alias:
        return "has neither name nor alias_name"
    return f"has the alias_name {var.alias!r} of one before it" if var.alias in seen else ""


def _type_problem(var: Var) -> str:
    try:
        dtype_of(var.elem_type)
    except ValueError as error:
        return f"({var.alias!r}): {error}"
    return ""
