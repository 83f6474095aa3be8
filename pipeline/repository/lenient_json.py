"""JSON as protobuf reads it, and Triton's clients write it: keys without quotes, text in single
quotes, a comma behind the last element."""

from __future__ import annotations

import re
from collections.abc import Iterator

_TOKEN = re.compile(
    r"""\s*+(?:(?P<text>"(?:[^"\\]|\\.)*+")|(?P<single>'(?:[^'\\]|\\.)*+')"""
    r"""|(?P<key>[A-Za-z_$][\w$]*+)(?=\s*+:)|(?P<other>[{}\[\],:]|[^\s"'{}\[\],:]++))""",
    re.DOTALL | re.ASCII,
)
_TO_ESCAPE = re.compile(r'\\.|"', re.DOTALL)
_CHANGED = {r"\'": "'", '"': r"\""}


def strict_json(text: str) -> str:
    """Return the same as every reader takes it; what is no JSON either way stays as it is."""
    parts: list[str] = []
    for token in _tokens(text):
        if token in ("}", "]") and parts and parts[-1] == ",":
            parts.pop()
        parts.append(token)
    return " ".join(parts)


def is_nested_deeper(text: str, most: int) -> bool:
    """Return whether more lists and objects of a text of JSON than that are open at once."""
    depth = 0
    for token in _tokens(text):
        depth += (token in ("{", "[")) - (token in ("}", "]"))
        if depth > most:
            return True
    return False


def _tokens(text: str) -> Iterator[str]:
    at = 0
    while token := _TOKEN.match(text, at):
        at = token.end()
        if token["single"]:
            inner = _TO_ESCAPE.sub(lambda one: _CHANGED.get(one[0], one[0]), token["single"][1:-1])
            yield f'"{inner}"'
        else:
            yield f'"{token["key"]}"' if token["key"] else token["text"] or token["other"]
    yield text[at:]
