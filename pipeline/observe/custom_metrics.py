"""CustomMetrics: metric families and series of models' code, for `/metrics`."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate

from pipeline.engine.model_calls import MetricUse
from pipeline.errors import InputError, NoServiceError, OverloadedError
from pipeline.metrics import MAX_SERIES, MAX_TEXT, check_buckets, check_labels, check_name

_KINDS = ("counter", "gauge", "histogram")

Key = tuple[tuple[str, str], ...]
"""Labels of a series, by name."""


class _Series:
    """One series: a value, or the counts of a histogram's buckets and the sum of all values."""

    def __init__(self, buckets: Sequence[float]) -> None:
        self.users: int = 0
        self.value: float = 0.0
        self.buckets: tuple[float, ...] = tuple(buckets)
        self.counts: list[int] = [0] * (len(buckets) + 1)

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.buckets, value)] += 1
        self.value += value


class _Family:
    """Series of one name."""

    def __init__(self, name: str, text: str, kind: str) -> None:
        self.name: str = name
        self.text: str = text
        self.kind: str = kind
        self.users: int = 0
        self.series: dict[Key, _Series] = {}

    def lines(self) -> Iterator[str]:
        """Yield the family in Prometheus' text format; nothing without series."""
        if not self.series:
            return
        yield f"# HELP {self.name} {_escaped(self.text)}"
        yield f"# TYPE {self.name} {self.kind}"
        for key, series in self.series.items():
            if self.kind != "histogram":
                yield f"{self.name}{_labels(key)} {_number(series.value)}"
                continue
            count = sum(series.counts)
            yield f"{self.name}_count{_labels(key)} {count}"
            yield f"{self.name}_sum{_labels(key)} {_number(series.value)}"
            for bound, up_to in zip(
                (*series.buckets, math.inf), accumulate(series.counts), strict=True
            ):
                yield f"{self.name}_bucket{_labels((*key, ('le', _number(bound))))} {up_to}"


class CustomMetrics:
    """The families of a server, on its event loop.

    Workers share families by name, with the first text, and series by labels. Families and series
    exist as long as a worker uses them.
    """

    def __init__(self) -> None:
        self._families: dict[str, _Family] = {}

    def holder(self) -> CustomMetricsOfWorker:
        """Return a worker's access to the families."""
        return CustomMetricsOfWorker(self)

    def text(self) -> bytes:
        """Return all series in Prometheus' text format."""
        lines = [line for family in self._families.values() for line in family.lines()]
        return "".join(f"{line}\n" for line in lines).encode()

    def take(self, use: MetricUse) -> _Family:
        """Return a family and add a user. Raises InputError, OverloadedError."""
        family = self._families.get(use.name)
        if family is None:
            if len(self._families) >= MAX_SERIES:
                raise OverloadedError(f"there are {MAX_SERIES} families of metrics: no more")
            _check_family(use)
            family = self._families[use.name] = _Family(use.name, use.text, use.kind)
        elif family.kind != use.kind:
            raise InputError(
                f"metric family '{use.name}' is there already, as a {family.kind}, not a {use.kind}"
            )
        family.users += 1
        return family

    def take_series(self, family: _Family, key: Key, buckets: Sequence[float]) -> _Series:
        """Return a series and add a user. Raises InputError, OverloadedError."""
        series = family.series.get(key)
        if series is None:
            if sum(len(family.series) for family in self._families.values()) >= MAX_SERIES:
                raise OverloadedError(f"there are {MAX_SERIES} series of metrics: no more")
            _check_series(key, buckets, family.kind)
            series = family.series[key] = _Series(buckets)
        series.users += 1
        return series

    def release(self, family: _Family, keys: Sequence[Key]) -> None:
        """Remove a user of a family and of these series."""
        for key in keys:
            family.series[key].users -= 1
            if not family.series[key].users:
                del family.series[key]
        family.users -= 1
        if not family.users:
            del self._families[family.name]


class CustomMetricsOfWorker:
    """The families and series of one worker; see `MetricHolder`."""

    def __init__(self, metrics: CustomMetrics) -> None:
        self._metrics = metrics
        self._held: dict[int, tuple[_Family, dict[Key, _Series]]] = {}

    def use(self, use: MetricUse) -> float:
        """Run a model's command; return the value of the series if it has one.

        Raises:
            InputError, OverloadedError: the family or series cannot be made.
            NoServiceError: the worker does not have the family or the series.
        """
        if use.action == "family":
            self._held[use.number] = self._metrics.take(use), {}
            return 0.0
        if use.number not in self._held:
            raise NoServiceError("there is no such metric family")
        family, held = self._held[use.number]
        if use.action == "drop":
            del self._held[use.number]
            self._metrics.release(family, list(held))
            return 0.0
        key = tuple(sorted(use.labels.items()))
        if use.action == "series":
            if key not in held:
                held[key] = self._metrics.take_series(family, key, use.buckets)
        elif key not in held:
            raise NoServiceError(f"metric family '{family.name}' has no series of these labels")
        return _done(held[key], use)

    def close(self) -> None:
        """Release everything that an ended worker used."""
        for family, held in self._held.values():
            self._metrics.release(family, list(held))
        self._held.clear()


def _done(series: _Series, use: MetricUse) -> float:
    if use.action == "add":
        series.value += use.amount
    elif use.action == "set":
        series.value = use.amount
    elif use.action == "observe":
        series.observe(use.amount)
    return series.value


def _check_family(use: MetricUse) -> None:
    if use.kind not in _KINDS:
        raise InputError(f"a metric family is one of {', '.join(_KINDS)}, not {use.kind!r}")
    if len(use.text) > MAX_TEXT:
        raise InputError(f"metric family '{use.name}': the description is over {MAX_TEXT} long")
    try:
        check_name(use.name, "a metric family")
    except ValueError as error:
        raise InputError(str(error)) from None


def _check_series(key: Key, buckets: Sequence[float], kind: str) -> None:
    try:
        check_labels(key, kind)
        check_buckets(buckets if kind == "histogram" else ())
    except ValueError as error:
        raise InputError(str(error)) from None


# The format -------------------------------------------------------------------------------


def _labels(key: Sequence[tuple[str, str]]) -> str:
    labels = ",".join(f'{name}="{_quoted(value)}"' for name, value in key)
    return f"{{{labels}}}" if labels else ""


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n")


def _quoted(text: str) -> str:
    return _escaped(text).replace('"', r"\"")


def _number(value: float) -> str:
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if value.is_integer() and abs(value) < 1e15 else repr(value)
