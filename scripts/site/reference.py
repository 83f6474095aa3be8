"""The reference: what is public, with its docstrings, one page a module."""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

_ROOT = Path(__file__).resolve().parents[2]
_SECTIONS = ("Args", "Attributes", "Raises", "Returns", "Yields")
_WIDTH = 88
_EMPTY = inspect.Signature.empty
_ENTRY = re.compile(r"^(\*{0,2}[\w.]+): (.*)$")
# Names of the predecessor's scripts, wires, and programs: they have pages of their own.
_ELSEWHERE = ("pipeline.dropin", "pipeline.proto", "pipeline.gateway", "pipeline.serve")


def modules() -> dict[str, tuple[str, ...]]:
    """Return the public names of each public module; empty: the names in its `__all__`."""
    sys.path.insert(0, str(_ROOT / "tests" / "support"))
    try:
        surface = importlib.import_module("public_surface")
    finally:
        sys.path.pop(0)
    known: dict[str, tuple[str, ...]] = surface.PUBLIC_MODULES
    return {
        name: names
        for name, names in known.items()
        if not any(name == prefix or name.startswith(f"{prefix}.") for prefix in _ELSEWHERE)
    }


def reference() -> Iterator[tuple[str, str]]:
    """Yield (place, text) of each page."""
    rows = []
    for name, names in modules().items():
        module = importlib.import_module(name)
        yield (
            f"api/{name}.md",
            f"# {name}\n\n{_text_of(module)}\n\n"
            + "\n\n".join(_entries(module, names or _public(module))),
        )
        rows.append(f"| [`{name}`]({name}.md) | {_text_of(module).partition(chr(10))[0]} |")
    listed = "\n".join(sorted(rows))
    yield (
        "api/index.md",
        "# Reference\n\nWhat is public, and stays: made of the docstrings.\n\n"
        f"| module | |\n|---|---|\n{listed}\n",
    )


def _public(module: ModuleType) -> list[str]:
    if hasattr(module, "__all__"):
        return sorted(module.__all__)
    return [
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", "") == module.__name__
    ]


def _entries(module: ModuleType, names: Any) -> Iterator[str]:
    for name in names:
        value = getattr(module, name)
        if inspect.isclass(value):
            yield f"## {name}\n\n{_signed(name, value)}\n\n{_text_of(value)}"
            yield from _members(value)
        elif callable(value):
            yield f"## {name}\n\n{_signed(name, value)}\n\n{_text_of(value)}"


def _members(kind: type) -> Iterator[str]:
    for name, value in vars(kind).items():
        plain = value.__func__ if isinstance(value, staticmethod | classmethod) else value
        if name.startswith("_") or not (inspect.isfunction(plain) or isinstance(plain, property)):
            continue
        text = _text_of(plain)
        if text:
            shown = name if isinstance(plain, property) else f"{name}()"
            signed = "" if isinstance(plain, property) else f"{_signed(name, plain)}\n\n"
            yield f"### {kind.__name__}.{shown}\n\n{signed}{text}"


def _signed(name: str, value: Any) -> str:
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):
        return ""
    shown = [
        parameter.replace(annotation=_Bare(parameter.annotation))
        if isinstance(parameter.annotation, str)
        else parameter
        for parameter in signature.parameters.values()
        if parameter.name != "self"
    ]
    returned: Any = signature.return_annotation
    returned = _Bare(returned) if isinstance(returned, str) and returned != "None" else _EMPTY
    text = f"{name}{signature.replace(parameters=shown, return_annotation=returned)}"
    if len(text) > _WIDTH:
        lines = ",\n    ".join(str(parameter) for parameter in _with_star(shown))
        arrow = "" if returned is _EMPTY else f" -> {returned!r}"
        text = f"{name}(\n    {lines},\n){arrow}"
    text = re.sub(r" at 0x[0-9a-f]+", "", text)
    return f"```python\n{text}\n```"


class _Bare(str):
    """An annotation as it is written: without quotes."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def _with_star(parameters: list[inspect.Parameter]) -> Iterator[object]:
    """Yield parameters, with a star before the keyword-only ones."""
    has_star = False
    for parameter in parameters:
        if parameter.kind is parameter.VAR_POSITIONAL:
            has_star = True
        if parameter.kind is parameter.KEYWORD_ONLY and not has_star:
            has_star = True
            yield "*"
        yield parameter


def _text_of(value: Any) -> str:
    """Return its own docstring in Markdown; "": it has none."""
    doc = value.__doc__ if isinstance(value, property | ModuleType) else vars_doc(value)
    return markdown(inspect.cleandoc(doc)) if doc else ""


def vars_doc(value: Any) -> str | None:
    """Return a docstring that is written there, and not inherited or generated."""
    doc = value.__doc__
    is_made = inspect.isclass(value) and bool(doc) and doc.startswith(f"{value.__name__}(")
    return None if is_made else doc


def markdown(doc: str) -> str:
    """Return a docstring in Markdown: sections as lists, examples as code."""
    pieces, section = [], ""
    for paragraph in doc.split("\n\n"):
        head, _, rest = paragraph.partition("\n")
        if head.rstrip(":") in _SECTIONS and head.endswith(":"):
            section = head.rstrip(":")
            pieces.append(f"**{section}**\n\n{_listed(rest)}")
        elif paragraph.startswith(">>>"):
            pieces.append(f"```pycon\n{paragraph}\n```")
        elif paragraph.startswith("    "):
            pieces.append(f"```python\n{inspect.cleandoc(paragraph)}\n```")
        else:
            pieces.append(_escaped(paragraph))
    return "\n\n".join(pieces)


def _listed(lines: str) -> str:
    """Return the entries of a section, `name: text`, as a list."""
    entries: list[str] = []
    for line in inspect.cleandoc(lines).split("\n"):
        match = _ENTRY.match(line)
        if match:
            entries.append(f"- `{match[1]}`: {_escaped(match[2])}")
        elif entries:
            entries[-1] += f" {_escaped(line.strip())}"
        else:
            entries.append(_escaped(line))
    return "\n".join(entries)


def _escaped(text: str) -> str:
    """Return prose in which nothing but `code` is markup."""
    parts = text.split("`")
    parts[::2] = [re.sub(r"([<*_\[\]])", r"\\\1", part) for part in parts[::2]]
    return "`".join(parts)
