"""YAML files as plain values with the line of each key, for errors."""

from __future__ import annotations

import os
import re
import reprlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import yaml

from pipeline.errors import ConfigError

MAX_FILE_BYTES = 64 * 1024
"""Maximum size of a file in an expression: it is for passwords and keys."""

_EXPRESSION = re.compile(r"\$\$\{|\$\{([^}]*)\}|\$\{")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_FILE = "file:"
_DEFAULT = ":-"


class ExpressionError(ValueError):
    """An expression has no value. The text has the expression, and what to do."""


class Expanded(NamedTuple):
    """A value with the text in place of its expressions; secret: some came from files."""

    text: str
    is_secret: bool


class Expressions:
    """The meaning of `${NAME}`, `${NAME:-default}` and `${file:PATH}` in values of config.yml."""

    def __init__(self, environ: Mapping[str, str], folder: Path) -> None:
        self._environ = environ
        self._folder = folder

    def expand(self, text: str) -> Expanded | None:
        """Return a value with its expressions replaced; None without expressions and `$${`.

        Expressions in the replacements are not replaced. Raises ExpressionError.
        """
        if "${" not in text:
            return None
        is_secret = False

        def replacement(match: re.Match[str]) -> str:
            nonlocal is_secret
            if match[0] == "$${":
                return "${"
            if match[1] is None:
                raise ExpressionError("${ without its }: write $${ for these two characters")
            name, has_default, default = match[1].partition(_DEFAULT)
            if name.startswith(_FILE):
                is_secret = True
                return self._file(name.removeprefix(_FILE), default if has_default else None)
            return self._variable(name, default if has_default else None)

        return Expanded(_EXPRESSION.sub(replacement, text), is_secret)

    def _variable(self, name: str, default: str | None) -> str:
        if not _NAME.fullmatch(name):
            raise ExpressionError(
                f"${{{name}}}: expected the name of an environment variable or file:PATH; write "
                "$${ for these two characters themselves"
            )
        value = self._environ.get(name)
        if default is not None:
            value = value or default
        if value is None:
            raise ExpressionError(
                f"${{{name}}}: the environment variable {name} is not set; set it, or give a "
                f"default: ${{{name}{_DEFAULT}...}}"
            )
        if not is_text(value):
            raise ExpressionError(f"${{{name}}}: the environment variable is not UTF-8 text")
        return value

    def _file(self, path: str, default: str | None) -> str:
        """Return a file's text without line breaks at its end."""
        place = f"${{{_FILE}{path}}}"
        try:
            file = self._folder / path
            if not file.exists() and default is not None:
                return default
            if file.exists() and not file.is_file():  # reading a pipe would block
                raise ExpressionError(f"{place}: it is not a file")
            with file.open("rb") as opened:
                data = opened.read(MAX_FILE_BYTES + 1)
            text = data.decode()
        except UnicodeDecodeError:
            raise ExpressionError(f"{place}: the file is not UTF-8 text") from None
        except (OSError, ValueError) as error:
            if isinstance(error, ExpressionError):
                raise
            reason = getattr(error, "strerror", None) or error
            raise ExpressionError(f"{place}: {reason}") from None
        if len(data) > MAX_FILE_BYTES:
            raise ExpressionError(f"{place}: the file is larger than {MAX_FILE_BYTES} bytes")
        return text.rstrip("\r\n")


def is_text(value: str) -> bool:
    """Return whether a value of the environment or a command line was UTF-8."""
    try:
        value.encode()
    except UnicodeEncodeError:  # Python replaced the other bytes by surrogates
        return False
    return True


KeyPath = tuple[object, ...]

MAX_DEPTH = 32
"""Levels of nesting. Ours are four; at 100,000 libyaml's composer overflows the C stack."""

MAX_NODES = 100_000
"""Values after aliases are followed: a few lines of aliases of aliases can stand for billions."""

_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_repr = reprlib.Repr()
_repr.maxstring = _repr.maxother = 80
_MERGE_TAG = "tag:yaml.org,2002:merge"

# PyYAML's constructors of scalars leak these for texts such as `!!bool x` and `2026-99-99`.
_SCALAR_ERRORS = (yaml.YAMLError, ValueError, LookupError, AttributeError, ArithmeticError)


class Text(NamedTuple):
    """A value as text, and as it was written where that has expressions: `${N}`."""

    text: str
    written: str = ""


class ConfigSource(msgspec.Struct, frozen=True):
    """Plain values, with the name and, when they come from a file, the lines of their keys.

    Attributes:
        problems: mistakes that the values do not show, such as a key given twice.
        warnings: minor problems that the values do not show.
        origins: origins of values from another source: `config.prod.yml:3`.
        texts: original texts of values from expressions or from outside of files; `data` has
            YAML's value: 4 for "4".
        secrets: values that no message may show.
    """

    name: str
    data: object
    lines: Mapping[KeyPath, int] = {}
    problems: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    origins: Mapping[KeyPath, str] = {}
    texts: Mapping[KeyPath, Text] = {}
    secrets: frozenset[KeyPath] = frozenset()

    def place(self, path: KeyPath) -> str:
        """Return `config.yml:12: op.bow.timeout`, to open a message about the value at `path`.

        A missing value has the line of the mapping that lacks it.
        """
        origin, key = self.origin(path), dotted(path)
        return f"{origin}: {key}" if key else origin

    def origin(self, path: KeyPath) -> str:
        """Return where the value at `path` comes from: `config.yml:12`."""
        for length in range(len(path), 0, -1):
            known = path[:length]
            if known in self.origins:
                return self.origins[known]
            if known in self.lines:
                return f"{self.name}:{self.lines[known]}"
        return self.name

    def is_secret(self, path: KeyPath) -> bool:
        """Return whether the value at `path`, or a part of it, is secret."""
        return any(secret[: len(path)] == path for secret in self.secrets)


def read_yaml(file: str | os.PathLike[str], expressions: Expressions | None = None) -> ConfigSource:
    """Read one YAML document; ConfigError when it cannot be read, or is not YAML.

    `expressions` are replaced in values.
    """
    name = os.fspath(file)
    try:
        text = Path(file).read_bytes()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"{name}: {reason} (current folder: {Path.cwd()})") from error
    try:
        return parse_yaml(text, name, expressions)
    except yaml.YAMLError as error:
        raise ConfigError(_syntax_error(name, error)) from error


def shown(value: object) -> str:
    """Return a value for a message: its repr, shortened."""
    try:
        return _repr.repr(value)
    except (
        Exception
    ):  # a yml_dict may have anything, and Python refuses to print an int of 4,301 digits
        return "what cannot be shown"


def value_of(text: str, name: str) -> tuple[object, tuple[str, ...]]:
    """Return YAML's value of a text from outside of files, and its mistakes.

    A text that is not valid YAML, or a single word without a type, is itself the value. Raises
    ConfigError: it is too large.
    """
    try:
        parsed = parse_yaml(text.encode(), name)
    except (yaml.YAMLError, ValueError):
        return text, ()
    if isinstance(parsed.data, Mapping | list):
        return parsed.data, parsed.problems
    return (text if parsed.problems else parsed.data), ()


def flow(value: object) -> str:
    """Return a plain value as YAML in one line."""
    text = yaml.safe_dump(
        value, default_flow_style=True, sort_keys=False, allow_unicode=True, width=2**31
    )
    return text.removesuffix("...\n").rstrip("\n")


def parse_yaml(text: bytes, name: str, expressions: Expressions | None = None) -> ConfigSource:
    """Return one YAML document; raises yaml.YAMLError, and ConfigError if it is too large."""
    _check_size(text, name)
    loader = _Loader(text)
    try:
        root = loader.get_single_node()
        walk = _YamlWalk(name, loader, expressions)
        data = None if root is None else walk.value(root, (), 0)
    finally:
        loader.dispose()
    return ConfigSource(
        name,
        data,
        walk.lines,
        tuple(walk.problems),
        texts=walk.texts,
        secrets=frozenset(walk.secrets),
    )


def _check_size(text: bytes, name: str) -> None:
    """Refuse a text that is too large to compose; reading events does not recurse."""
    depth = 0
    for count, event in enumerate(yaml.parse(text, _Loader)):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        _check_limits(depth, count, name)


def _check_limits(depth: int, nodes: int, place: str) -> None:
    if depth > MAX_DEPTH:
        raise ConfigError(f"{place}: nested deeper than {MAX_DEPTH} levels")
    if nodes > MAX_NODES:
        raise ConfigError(f"{place}: more than {MAX_NODES} values, aliases followed")


class _YamlWalk:
    """Converts a tree of YAML nodes to plain values, and collects lines and problems."""

    def __init__(
        self, name: str, loader: yaml.SafeLoader, expressions: Expressions | None = None
    ) -> None:
        self.lines: dict[KeyPath, int] = {}
        self.texts: dict[KeyPath, Text] = {}
        self.secrets: set[KeyPath] = set()
        self._expressions = expressions
        # A dict for its order and its keys: an alias leads to the same problem again.
        self.problems: dict[str, None] = {}
        self._name = name
        self._loader = loader
        self._nodes = 0

    def value(self, node: yaml.Node, path: KeyPath, depth: int) -> object:
        self._nodes += 1
        _check_limits(depth, self._nodes, _place(self._name, _line(node), path))
        if isinstance(node, yaml.ScalarNode):
            return self._expanded(node, path, self._scalar(node, path))
        if node.tag == "tag:yaml.org,2002:map" and isinstance(node, yaml.MappingNode):
            return self._mapping(node, path, depth)
        if node.tag == "tag:yaml.org,2002:seq" and isinstance(node, yaml.SequenceNode):
            items = enumerate(node.value)
            return [self.value(item, (*path, index), depth + 1) for index, item in items]
        self._problem(node, path, f"the tag {node.tag} is not supported")
        return None

    def _scalar(self, node: yaml.ScalarNode, path: KeyPath) -> object:
        try:
            return self._loader.construct_object(node)
        except _SCALAR_ERRORS as error:
            reason = getattr(error, "problem", None) or error
            self._problem(node, path, f"{node.value[:60]!r} cannot be read: {reason}")
            return None

    def _expanded(self, node: yaml.ScalarNode, path: KeyPath, value: object) -> object:
        """Return a value with its expressions replaced, in YAML's type."""
        if self._expressions is None or not isinstance(value, str):
            return value
        try:
            expanded = self._expressions.expand(value)
        except ExpressionError as error:
            self._problem(node, path, str(error))
            return None
        if expanded is None:
            return value
        self.texts[path] = Text(expanded.text, value)
        if expanded.is_secret:
            self.secrets.add(path)
        # Only a scalar: the environment cannot add keys.
        resolve: Any = self._loader.resolve
        tag = resolve(yaml.ScalarNode, expanded.text, (True, False))
        try:
            return self._loader.construct_object(yaml.ScalarNode(tag, expanded.text))
        except _SCALAR_ERRORS:
            return expanded.text

    def _mapping(self, node: yaml.MappingNode, path: KeyPath, depth: int) -> dict[object, object]:
        values: dict[object, object] = {}
        for part in self._merged_mappings(node, path):
            self._nodes += 1
            _check_limits(depth + 1, self._nodes, _place(self._name, _line(part), path))
            values.update(self._mapping(part, path, depth + 1))
        seen: set[object] = set()
        for key_node, value_node in node.value:
            if key_node.tag == _MERGE_TAG:
                continue
            if not isinstance(key_node, yaml.ScalarNode):
                self._problem(key_node, path, "a key must be a single word, not a list or mapping")
                continue
            key = self._scalar(key_node, path)
            here = (*path, key)
            if key in seen:
                self._problem(key_node, here, f"given twice, first at line {self.lines[here]}")
                continue
            seen.add(key)
            self.lines[here] = _line(key_node)
            values[key] = self.value(value_node, here, depth + 1)
        return values

    def _merged_mappings(self, node: yaml.MappingNode, path: KeyPath) -> Iterator[yaml.MappingNode]:
        """Yield the mappings of `<<`, the weakest first: the first of a list wins."""
        for key_node, value_node in node.value:
            if key_node.tag != _MERGE_TAG:
                continue
            parts = value_node.value if isinstance(value_node, yaml.SequenceNode) else [value_node]
            for part in reversed(parts):
                if isinstance(part, yaml.MappingNode):
                    yield part
                else:
                    self._problem(part, (*path, "<<"), "only mappings can be merged")

    def _problem(self, node: yaml.Node, path: KeyPath, text: str) -> None:
        self.problems[f"{_place(self._name, _line(node), path)}: {text}"] = None


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1


def _place(name: str, line: int, path: KeyPath) -> str:
    key = dotted(path)
    return f"{name}:{line}: {key}" if key else f"{name}:{line}"


def dotted(path: KeyPath) -> str:
    """Return `op.bow.timeout`."""
    return ".".join(_key_text(part) for part in path)


def _key_text(key: object) -> str:
    is_plain = isinstance(key, str) and key.isprintable() and len(key) <= _repr.maxstring
    return str(key) if is_plain else shown(key)


def _syntax_error(name: str, error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    if mark is None:
        return f"{name}: not a YAML file: {error}"
    context = getattr(error, "context", None)
    where = f" ({context})" if context else ""
    problem = getattr(error, "problem", None)
    return f"{name}:{mark.line + 1}:{mark.column + 1}: not valid YAML: {problem}{where}"
