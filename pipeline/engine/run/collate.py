"""Makes calls of `process` from items, and cuts results into items. Pure functions.

Samples that agree in names, dtypes and trailing shapes are merged along axis 0; the others run in
calls of their own. LoD offsets (`<name>.lod`) are re-based both ways. Lists are joined, scalars are
kept, and items with different scalars are not mixed; see `with_columns`.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np

from pipeline.engine.run.call import Call
from pipeline.errors import PayloadTypeError
from pipeline.routes import Answer, answer_with

LOD = ".lod"
_SCALARS = (str, bytes, bool, int, float, complex, np.generic, type(None))


Form = tuple[tuple[str, "np.dtype[Any]", tuple[int, ...]], ...]
"""(name, dtype, shape of a row) of each of some arrays that have equally many rows"""


def plan(items: Mapping[int, Any], most_rows: int = 0) -> list[Call]:
    """Return the calls for `items` (index in the batch -> the result of preprocess).

    Samples are merged up to `most_rows` rows, if that is not 0; none is split.

    Raises nothing: an item that is neither dict nor list gets a call that has failed already.
    """
    if len(items) == 1:
        ((index, item),) = items.items()
        return [Call(item, [index])] if isinstance(item, dict) else _plan_one(index, item)
    if _are_alike(list(items.values())):
        parts = bounded(items, list(items), most_rows)
        return [_merge_arrays({index: items[index] for index in part}) for part in parts]
    calls: list[Call] = []
    groups: dict[Hashable, list[int]] = {}
    for index, item in items.items():
        signature = _signature(item) if isinstance(item, dict) else None
        if signature is None:
            calls.extend(_plan_one(index, item))
        else:
            groups.setdefault(signature, []).append(index)
    return calls + [
        _merge([items[index] for index in part], part)
        for group in groups.values()
        for part in bounded(items, group, most_rows)
    ]


def with_columns(feed: Any) -> Any:
    """Return a feed in which each scalar has become a column with a value for each row."""
    if not isinstance(feed, dict):
        return feed
    for value in feed.values():
        if isinstance(value, _SCALARS):
            rows = rows_of(feed)
            return {name: _column(value, rows) for name, value in feed.items()}
    return feed


def _column(value: Any, rows: int) -> Any:
    """Return an array of a number, a list of any other scalar; other values unchanged."""
    if not isinstance(value, _SCALARS):
        return value
    column = None if isinstance(value, str | bytes | None) else np.full(rows, value)
    return [value] * rows if column is None or column.dtype.hasobject else column


def plan_each(items: Mapping[int, Any], most_rows: int = 0) -> list[Call]:
    """Return the calls for items that `process` gets one by one.

    The feed of a call is the list of their feeds, with at most `most_rows` rows if that is not 0.
    """
    rows = list(map(rows_of, items.values()))
    if not most_rows or sum(rows) <= most_rows:  # the common case
        return [Call(list(items.values()), list(items), [rows])]
    return [
        Call([items[index] for index in part], part, [[rows_of(items[index]) for index in part]])
        for part in bounded(items, list(items), most_rows)
    ]


def plan_alone(items: Mapping[int, Any], most_rows: int = 0) -> list[Call]:
    """Return a call for each item; see `plan_each`."""
    return [Call([feed], [index], [[rows_of(feed)]]) for index, feed in items.items()]


def bounded(items: Mapping[int, Any], group: list[int], most_rows: int) -> list[list[int]]:
    """Return `group` in parts, in order, with at most `most_rows` rows each; 0: any number."""
    if not most_rows:
        return [group]
    parts: list[list[int]] = []
    room = 0
    for index in group:
        rows = rows_of(items[index])
        if not parts or rows > room:
            parts.append([])
            room = most_rows
        parts[-1].append(index)
        room -= rows
    return parts


def rows_brought(calls: Sequence[Call], items: int) -> list[int]:
    """Return how many rows each item of a batch fed, in all its parts; at least 1."""
    if len(calls) == 1 and calls[0].spans and len(calls[0].items) == items:  # the common case
        brought = calls[0].spans[0]
        return brought if all(brought) else [count or 1 for count in brought]
    rows = [0] * items
    for call in calls:
        if call.spans:
            for place, index in enumerate(call.items):
                rows[index] += call.spans[0][place]
        elif call.items:
            rows[call.items[0]] += rows_of(call.feed)
    return [max(1, count) for count in rows]


def executions_of(calls: Sequence[Call], items: int) -> tuple[list[int], list[int]]:
    """Return the number of each item's execution, -1: none; and when each execution ended."""
    if [call.items for call in calls] == [[index] for index in range(items)]:
        return list(range(items)), [call.end_ns for call in calls]
    executions, ends_ns = [-1] * items, list[int]()
    for call in calls:
        if executions[call.items[0]] < 0:  # otherwise it is another part of a mini-batch
            for index in call.items:
                executions[index] = len(ends_ns)
            ends_ns.append(0)
        ends_ns[-1] = call.end_ns
    return executions, ends_ns


def has_more_rows(data: Any, most: int) -> bool:
    """Return whether a feed, or one of a mini-batch, has more rows than `most`."""
    parts = data if isinstance(data, list) else [data]
    return any(rows_of(part) > most for part in parts)


def rows_of(feed: Any) -> int:
    """Return a feed's rows: the sequences of a LoD tensor, or the length of the first array."""
    if not isinstance(feed, dict):
        return 1
    if len(feed) == 1:  # it can have no LoD
        (value,) = feed.values()
        if type(value) is np.ndarray and value.ndim:
            return len(value)
    for name, value in feed.items():
        if isinstance(value, np.ndarray) and value.ndim and not _is_lod_of(name, feed):
            offsets = _flat_lod(feed[f"{name}{LOD}"]) if f"{name}{LOD}" in feed else None
            return len(value) if offsets is None else len(offsets) - 1
    return next((len(value) for value in feed.values() if isinstance(value, list)), 1)


def distribute(call: Call) -> list[Any]:
    """Return the call's result, cut into one result for each item.

    Raises:
        PayloadTypeError: the result does not have a row for each row fed, or one for each feed.
    """
    if call.ragged is not None:
        return call.ragged.cut(call.result, call.sources)
    if isinstance(call.feed, list):
        return _one_each(call.result, len(call.items))
    if len(call.items) == 1:
        return [call.result]
    return split_result(call.result, call.spans)


def _one_each(results: Any, count: int) -> list[Any]:
    if isinstance(results, list) and len(results) == count:
        return results
    raise PayloadTypeError(
        f"process returned {type(results).__name__}: return a list with a result, or an error in "
        f"its place, for each of the {count} requests"
    )


def split_result(result: Any, spans: list[list[int]]) -> list[Any]:
    """Return a result, or an Answer with one, cut into one for each item.

    Raises:
        PayloadTypeError: it does not have a row for each row in `spans`.
    """
    if isinstance(result, Answer):
        return [answer_with(answer, result.head) for answer in _split(result.answer, spans)]
    return _split(result, spans)


def _plan_one(index: int, item: Any) -> list[Call]:
    if isinstance(item, dict):
        return [Call(item, [index])]
    if isinstance(item, list):
        return [Call(element, [index], part=part) for part, element in enumerate(item)]
    error = PayloadTypeError(f"expect input type is dict or list, but get {type(item)}")
    return [Call(item, [index], error=error, done=True)]


# Merge --------------------------------------------------------------------------------------


def _are_alike(items: list[Any]) -> bool:
    """Return whether all items are dicts of plain arrays that only differ in their rows.

    True for nearly every batch of a model, and much faster than to compare signatures.
    """
    first = items[0]
    if not isinstance(first, dict) or not first:
        return False
    form, _ = form_of(first)
    count = len(first)
    if form is None:
        return False
    for item in items[1:]:
        if not isinstance(item, dict) or len(item) != count:
            return False
        rows = -1
        for name, dtype, row_shape in form:
            value = item.get(name)
            if type(value) is not np.ndarray or value.dtype != dtype or not value.ndim:
                return False
            shape = value.shape
            if shape[1:] != row_shape or rows not in (-1, shape[0]):
                return False
            rows = shape[0]
    return True


def form_of(item: dict[str, Any]) -> tuple[Form | None, int]:
    """Return the form of plain arrays with equal rows, and the rows; None for other items."""
    form: list[tuple[str, np.dtype[Any], tuple[int, ...]]] = []
    rows = -1
    for name, value in item.items():
        if type(value) is not np.ndarray or not value.ndim or str(name).endswith(LOD):
            return None, 0
        if rows not in (-1, len(value)):
            return None, 0
        rows = len(value)
        form.append((name, value.dtype, value.shape[1:]))
    return tuple(form) or None, rows


def _merge_arrays(items: Mapping[int, dict[str, Any]]) -> Call:
    feeds = list(items.values())
    if len(feeds) == 1:
        return Call(feeds[0], list(items))
    merged = {name: np.concatenate([feed[name] for feed in feeds]) for name in feeds[0]}
    first = next(iter(merged))
    return Call(merged, list(items), [[len(feed[first]) for feed in feeds]])


def _signature(item: dict[str, Any]) -> Hashable | None:
    """Return a value that is equal for items that can be merged; None: it cannot be merged."""
    entries: list[Hashable] = []
    for name in sorted(item, key=str):
        entry = _entry(name, item)
        if entry is None:
            return None
        entries.append(entry)
    return tuple(entries) if _spans_of(item) is not None else None


def _entry(name: str, item: dict[str, Any]) -> Hashable | None:
    value = item[name]
    if _is_lod_of(name, item):
        return (name, "lod") if _flat_lod(value) is not None else None
    if isinstance(value, np.ndarray) and value.ndim:
        kind = value.dtype.kind if value.dtype.kind in "USO" else value.dtype.str
        return (name, "array", kind, value.dtype.name, value.shape[1:])
    if isinstance(value, list):
        return (name, "list")
    if isinstance(value, np.ndarray):
        return (name, "scalar", value.dtype.str, value.tobytes())
    if isinstance(value, _SCALARS):
        return (name, "scalar", type(value), value)
    return None


def _is_lod_of(name: str, names: Mapping[str, Any]) -> bool:
    return isinstance(name, str) and name.endswith(LOD) and name.removesuffix(LOD) in names


def _flat_lod(value: Any) -> np.ndarray | None:
    """Return LoD offsets as a 1-D int array; None if they are not ascending offsets from 0."""
    try:
        offsets = np.asarray(value, dtype=np.int64)
    except (TypeError, ValueError):
        return None
    offsets = offsets.reshape(-1) if offsets.ndim == 2 and len(offsets) == 1 else offsets
    if offsets.ndim != 1 or len(offsets) < 1 or offsets[0] != 0:
        return None
    return offsets if bool((np.diff(offsets) >= 0).all()) else None


def _spans_of(item: dict[str, Any]) -> list[int] | None:
    """Return [rows, then sequences and tokens of every LoD tensor]; None if rows disagree."""
    rows: set[int] = set()
    lod_spans: list[int] = []
    for name in sorted(item, key=str):
        value = item[name]
        if _is_lod_of(name, item):
            continue
        if f"{name}{LOD}" in item and isinstance(value, np.ndarray) and value.ndim:
            offsets = _flat_lod(item[f"{name}{LOD}"])
            if offsets is None or offsets[-1] != len(value):
                return None
            lod_spans += [len(offsets) - 1, len(value)]
        elif isinstance(value, list) or (isinstance(value, np.ndarray) and value.ndim):
            rows.add(len(value))
    if len(rows) > 1:
        return None
    return [rows.pop() if rows else (lod_spans[0] if lod_spans else 1), *lod_spans]


def _merge(items: list[dict[str, Any]], indexes: list[int]) -> Call:
    if len(items) == 1:
        return Call(items[0], indexes)
    feed = {name: _join_values(name, items) for name in items[0]}
    spans = (_spans_of(item) or () for item in items)  # each has spans, because it has a signature
    return Call(feed, indexes, [list(column) for column in zip(*spans, strict=True)])


def _join_values(name: str, items: list[dict[str, Any]]) -> Any:
    values = [item[name] for item in items]
    first = values[0]
    if _is_lod_of(name, items[0]):  # [0, 2], [0, 3, 5] -> [0, 2, 5, 7]
        # every item has offsets here
        lods = [lod for lod in map(_flat_lod, values) if lod is not None]
        starts = np.cumsum([0, *(int(lod[-1]) for lod in lods)])
        shifted = [lod[1:] + start for lod, start in zip(lods, starts, strict=False)]
        joined = np.concatenate([np.zeros(1, np.int64), *shifted])
        return joined.tolist() if isinstance(first, list) else joined.astype(first.dtype)
    if isinstance(first, np.ndarray) and first.ndim:
        return np.concatenate(values)
    if isinstance(first, list):
        return [element for value in values for element in value]
    return first


# Split --------------------------------------------------------------------------------------


def _split(result: Any, spans: list[list[int]]) -> list[Any]:
    count = len(spans[0])
    if not isinstance(result, Mapping):
        return _split_value("the result", result, spans)
    parts: list[dict[str, Any]] = [{} for _ in range(count)]
    for name, value in result.items():
        if _is_lod_of(name, result):
            continue
        if f"{name}{LOD}" in result:
            _split_lod(name, value, result[f"{name}{LOD}"], spans, parts)
            continue
        for part, piece in zip(parts, _split_value(repr(name), value, spans), strict=True):
            part[name] = piece
    return parts


def _split_value(name: str, value: Any, spans: list[list[int]]) -> list[Any]:
    """Return a piece for each item; a value without axis 0 goes to all, dicts are split within."""
    if isinstance(value, Mapping):
        return _split(value, spans)
    if not isinstance(value, list | tuple) and not (isinstance(value, np.ndarray) and value.ndim):
        if isinstance(value, (*_SCALARS, np.ndarray)):
            return [value] * len(spans[0])
        raise PayloadTypeError(
            f"process returned {name} as {type(value).__name__}, which cannot be split over the "
            f"{len(spans[0])} requests of a batch: return arrays or lists with one row for each "
            "row fed, or set batch_size to 1."
        )
    for counts in spans:
        if sum(counts) == len(value):
            return slices(value, counts)
    raise PayloadTypeError(
        f"process returned {name} with {len(value)} rows for a batch of {sum(spans[0])} rows "
        f"from {len(spans[0])} requests: return one row for each row fed, or set batch_size to 1."
    )


def slices(value: Any, counts: Sequence[int]) -> list[Any]:
    """Return `value` cut into pieces of so many rows each."""
    ends = itertools.accumulate(counts)
    return [value[end - count : end] for count, end in zip(counts, ends, strict=True)]


def _split_lod(
    name: str, value: Any, lod: Any, spans: list[list[int]], parts: list[dict[str, Any]]
) -> None:
    offsets = _flat_lod(lod)
    total = -1 if offsets is None else len(offsets) - 1
    counts = next((counts for counts in spans if sum(counts) == total), None)
    if offsets is None or counts is None or offsets[-1] != len(value):
        raise PayloadTypeError(
            f"process returned {name!r} with a LoD of {lod!r}, which does not fit a batch of "
            f"{sum(spans[0])} rows from {len(spans[0])} requests."
        )
    sequence = 0
    for part, count in zip(parts, counts, strict=True):
        own = offsets[sequence : sequence + count + 1]
        part[name] = value[own[0] : own[-1]]
        rebased = own - own[0]
        part[f"{name}{LOD}"] = (
            rebased.tolist() if isinstance(lod, list) else rebased.astype(np.asarray(lod).dtype)
        )
        sequence += count
