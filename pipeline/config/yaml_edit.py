"""Edits a YAML file's text, so that its comments and its order stay."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import yaml


class OpChange(NamedTuple):
    """New values for keys of an Op, and the reason in one line."""

    values: Mapping[str, int | float]
    why: str


class _Edit(NamedTuple):
    """The text from `begin` to `end` is replaced."""

    begin: int
    end: int
    text: str


class _CannotEditError(Exception):
    """The text has an unsupported form."""


def with_ops_changed(text: str, changes: Mapping[str, OpChange]) -> str:
    """Return a config.yml with these values below `op:`, and above each Op why.

    A text in a form that cannot be edited in place, such as one with an alias, is rewritten as a
    whole, without its comments.
    """
    expected = _changed(yaml.safe_load(text), changes)
    try:
        edited = _edited(text, changes)
        if yaml.safe_load(edited) == expected:
            return edited
    except (_CannotEditError, yaml.YAMLError):
        pass
    comments = "".join(f"# {op}: {change.why}\n" for op, change in changes.items())
    return comments + yaml.safe_dump(expected, sort_keys=False)


def _changed(data: Any, changes: Mapping[str, OpChange]) -> dict[str, Any]:
    ops = dict((data or {}).get("op") or {})
    for op, change in changes.items():
        ops[op] = {**(ops.get(op) or {}), **change.values}
    return {**(data or {}), "op": ops}


def _edited(text: str, changes: Mapping[str, OpChange]) -> str:
    ops = _member(yaml.compose(text, yaml.SafeLoader), "op")
    if ops is None:
        blocks = "".join(f"  {_block(op, change, 2)}" for op, change in changes.items())
        return f"{text.rstrip()}\nop:\n{blocks}".lstrip()
    new_first = sorted(changes, key=lambda op: _member(ops[1], op) is not None)
    edits = [edit for op in new_first for edit in _op_edits(ops[1], op, changes[op])]
    for edit in sorted(edits, key=lambda edit: edit.begin)[::-1]:
        text = text[: edit.begin] + edit.text + text[edit.end :]
    return text


def _op_edits(ops: yaml.Node, op: str, change: OpChange) -> Iterator[_Edit]:
    if not isinstance(ops, yaml.MappingNode) or ops.flow_style or not ops.value:
        raise _CannotEditError
    member = _member(ops, op)
    if member is None:
        first = ops.value[0][0].start_mark
        block = _block(op, change, first.column) + " " * first.column
        yield _Edit(first.index, first.index, block)
        return
    above, of_op = member[0].start_mark, member[1]
    if not isinstance(of_op, yaml.MappingNode):
        raise _CannotEditError
    yield _Edit(above.index, above.index, f"# {change.why}\n{' ' * above.column}")
    for key, value in change.values.items():
        known = _member(of_op, key)
        if known is not None:
            yield _Edit(known[1].start_mark.index, known[1].end_mark.index, str(value))
        elif of_op.flow_style:
            yield _Edit(begin := of_op.start_mark.index + 1, begin, f"{key}: {value}, ")
        else:
            first = of_op.value[0][0].start_mark
            yield _Edit(first.index, first.index, f"{key}: {value}\n{' ' * first.column}")


def _block(op: str, change: OpChange, column: int) -> str:
    """Return the lines of a new Op; the first line is already indented."""
    indent = " " * column
    lines = "".join(f"{indent}  {key}: {value}\n" for key, value in change.values.items())
    return f"# {change.why}\n{indent}{op}:\n{lines}"


def _member(node: yaml.Node | None, key: str) -> tuple[yaml.Node, yaml.Node] | None:
    if node is None:
        return None
    if not isinstance(node, yaml.MappingNode):
        raise _CannotEditError
    return next(((member, value) for member, value in node.value if member.value == key), None)
