"""Changes to a YAML file's text, so that its comments and its order stay."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import yaml

Changes = Mapping[str, Mapping[str, tuple[int | float, str]]]
"""Of each Op, by keys: the value that it is to have, and why."""


class _Edit(NamedTuple):
    """The text from `begin` to `end` is replaced."""

    begin: int
    end: int
    text: str


def with_ops_changed(text: str, changes: Changes) -> str:
    """Return a config.yml with these values below `op:`, and above each of them why.

    Where the text has a form that cannot be edited in place, such as an alias, all of it is
    written anew, without its comments.
    """
    expected = _changed(yaml.safe_load(text), changes)
    try:
        edited = _edited(text, changes)
        if yaml.safe_load(edited) == expected:
            return edited
    except (_CannotEditError, yaml.YAMLError):
        pass
    told = [f"#   {op}.{key}: {why}\n" for op, key, _, why in _each(changes)]
    return "# Changed:\n" + "".join(told) + yaml.safe_dump(expected, sort_keys=False)


class _CannotEditError(Exception):
    """The text has another form than is known here."""


def _each(changes: Changes) -> Iterator[tuple[str, str, int | float, str]]:
    for op, values in changes.items():
        for key, (value, why) in values.items():
            yield op, key, value, why


def _changed(data: Any, changes: Changes) -> Any:
    expected = copy.deepcopy(data) or {}
    ops = expected["op"] = dict(expected.get("op") or {})
    for op, key, value, _ in _each(changes):
        ops[op] = {**(ops.get(op) or {}), key: value}
    return expected


def _edited(text: str, changes: Changes) -> str:
    root = yaml.compose(text, yaml.SafeLoader)
    ops = _member(root, "op")
    if ops is None:
        lines = [f"op:\n{''.join(_block(op, changes[op], '  '))}" for op in changes]
        if len(lines) > 1:
            lines[1:] = [line.removeprefix("op:\n") for line in lines[1:]]
        return text.rstrip("\n") + "\n" * bool(text.strip()) + "".join(lines)
    edits = [edit for op, values in changes.items() for edit in _op_edits(ops[1], op, values)]
    for edit in sorted(edits, reverse=True):
        text = text[: edit.begin] + edit.text + text[edit.end :]
    return text


def _op_edits(
    ops: yaml.Node, op: str, values: Mapping[str, tuple[int | float, str]]
) -> Iterator[_Edit]:
    if not isinstance(ops, yaml.MappingNode) or ops.flow_style or not ops.value:
        raise _CannotEditError
    found = _member(ops, op)
    first = ops.value[0][0].start_mark
    if found is None:
        block = "".join(_block(op, values, " " * first.column)).lstrip(" ")
        yield _Edit(first.index, first.index, block + " " * first.column)
        return
    key_node, of_op = found
    if not isinstance(of_op, yaml.MappingNode):
        raise _CannotEditError
    above = key_node.start_mark if of_op.flow_style or not of_op.value else None
    for key, (value, why) in values.items():
        yield from _value_edits(of_op, key, value, why, above)


def _value_edits(
    of_op: yaml.MappingNode, key: str, value: int | float, why: str, above: Any
) -> Iterator[_Edit]:
    known = _member(of_op, key)
    if known is not None:
        key_node, node = known
        if not isinstance(node, yaml.ScalarNode):
            raise _CannotEditError
        yield _Edit(node.start_mark.index, node.end_mark.index, str(value))
        mark = above or key_node.start_mark
        yield _Edit(mark.index, mark.index, f"# {why}\n{' ' * mark.column}")
    elif above is None:
        mark = of_op.value[0][0].start_mark
        yield _Edit(mark.index, mark.index, f"# {why}\n{_line(mark, key, value)}")
    else:
        place = of_op.start_mark.index + 1  # behind the {
        yield _Edit(place, place, f"{key}: {value}, ")
        yield _Edit(above.index, above.index, f"# {key}: {why}\n{' ' * above.column}")


def _line(mark: Any, key: str, value: int | float) -> str:
    indent = " " * mark.column
    return f"{indent}{key}: {value}\n{indent}"


def _block(op: str, values: Mapping[str, tuple[int | float, str]], indent: str) -> Iterator[str]:
    yield f"{indent}{op}:\n"
    for key, (value, why) in values.items():
        yield f"{indent}  # {why}\n{indent}  {key}: {value}\n"


def _member(node: yaml.Node | None, key: str) -> tuple[yaml.Node, yaml.Node] | None:
    if not isinstance(node, yaml.MappingNode):
        raise _CannotEditError
    return next(((each, value) for each, value in node.value if each.value == key), None)
