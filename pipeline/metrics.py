"""Metrics for user code: counters, gauges and histograms.

The counts stay in their process; a worker process sends them to the server with its next report,
and `/metrics` shows them. Any thread may count.
"""

from __future__ import annotations

import logging
import math
import re
import threading
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, pairwise
from typing import Literal

import msgspec

_LOGGER = logging.getLogger(__name__)

MAX_SERIES = 1000
"""Series of one process; counts of further ones are lost, with a line in the log."""
MAX_LABELS = 16
"""Labels of a series."""
MAX_BUCKETS = 64
"""Buckets of a histogram, without the last one, which has no bound."""
MAX_TEXT = 512
"""Characters of a name, a description or a label's value."""
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Default bounds of a histogram: times in seconds."""

_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL = re.compile(r"(?!__)[a-zA-Z_][a-zA-Z0-9_]*")
_OF_THE_SERVER = (
    *("nv_inference_", "nv_cache_", "nv_model_", "nv_gpu_", "nv_cpu_", "nv_energy_", "nv_pinned_"),
    *("pipeline_", "pd_", "process_", "python_"),
)

Kind = Literal["counter", "gauge", "histogram"]
Labels = tuple[tuple[str, str], ...]
"""Labels of a series, by name."""


class FamilyHead(msgspec.Struct, frozen=True, array_like=True):
    """Name, kind and text of all series of one name. `buckets` are the bounds of a histogram."""

    name: str
    kind: Kind
    text: str = ""
    buckets: tuple[float, ...] = ()


class SeriesChange(msgspec.Struct, array_like=True):
    """Change of one series since the last report.

    `value` is the number to add, or with `is_set` the new value; for a histogram the sum of the
    observed values, and `counts` how many fell into each bucket, the last one without a bound.
    """

    head: FamilyHead
    labels: Labels
    value: float = 0.0
    is_set: bool = False
    counts: list[int] = []


class MetricSamples(msgspec.Struct, array_like=True):
    """One family for display: samples are (name, labels, value)."""

    name: str
    kind: str
    text: str
    samples: list[tuple[str, dict[str, str], float]]


def check_name(name: str, what: str = "a metric") -> None:
    """Raise ValueError for an invalid name of a family, or one that the server reserves."""
    if len(name) > MAX_TEXT or _NAME.fullmatch(name) is None:
        raise ValueError(f"{name[:MAX_TEXT]!r} is not a valid name of {what}")
    if name.startswith(_OF_THE_SERVER):
        raise ValueError(f"{what} '{name}': names with this prefix are reserved for the server")


def check_labels(labels: Labels, kind: str) -> None:
    """Raise ValueError for labels that a series cannot have."""
    if len(labels) > MAX_LABELS:
        raise ValueError(f"a series may have {MAX_LABELS} labels, not {len(labels)}")
    for name, value in labels:
        is_taken = kind == "histogram" and name == "le"
        if len(name) > MAX_TEXT or _LABEL.fullmatch(name) is None or is_taken:
            raise ValueError(f"{name[:MAX_TEXT]!r} is not a valid name of a label")
        if len(value) > MAX_TEXT:
            raise ValueError(f"label '{name}': its value is over {MAX_TEXT} characters long")


def check_buckets(buckets: Sequence[float]) -> None:
    """Raise ValueError for bounds that a histogram cannot have."""
    if len(buckets) > MAX_BUCKETS:
        raise ValueError(f"a histogram may have {MAX_BUCKETS} buckets, not {len(buckets)}")
    rising = all(low < high for low, high in pairwise(buckets))
    if not rising or not all(math.isfinite(bound) for bound in buckets):
        raise ValueError("the bounds of buckets must be ascending numbers")


class Ledger:
    """The series of one process, and their changes since these were last taken."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._heads: dict[str, FamilyHead] = {}
        self._whole: dict[tuple[str, Labels], SeriesChange] = {}
        self._changed: dict[tuple[str, Labels], SeriesChange] = {}
        self._keeps_changes = False  # whether the changes are taken
        self._is_over_full = False

    def begin(self) -> None:
        """Reset, in a new worker process whose changes are taken: the content is its parent's."""
        self.__init__()  # type: ignore[misc]
        self._keeps_changes = True

    def head(self, head: FamilyHead) -> FamilyHead:
        """Return the family of a name, as it was first requested.

        Raises:
            ValueError: it is invalid, or exists as another kind.
        """
        known = self._heads.get(head.name)
        if known is None:
            check_name(head.name)
            check_buckets(head.buckets)
            if len(head.text) > MAX_TEXT:
                raise ValueError(f"a metric '{head.name}': its text is over {MAX_TEXT} long")
            with self._lock:
                known = self._heads.setdefault(head.name, head)
        if known.kind != head.kind:
            raise ValueError(f"a metric '{head.name}' exists already, as a {known.kind}")
        return known

    def change(self, head: FamilyHead, labels: Labels, value: float, is_set: bool = False) -> None:
        """Count: add to a series, set it, or have a histogram observe a value."""
        counts: list[int] = []
        if head.kind == "histogram":
            counts = [0] * (len(head.buckets) + 1)
            counts[bisect_left(head.buckets, value)] = 1
        with self._lock:
            self._merge(SeriesChange(head, labels, value, is_set, counts))

    def merge(self, changes: Sequence[SeriesChange]) -> None:
        """Add the changes from a worker process."""
        with self._lock:
            for change in changes:
                known = self._heads.setdefault(change.head.name, change.head)
                if (known.kind, known.buckets) == (change.head.kind, change.head.buckets):
                    self._merge(change)

    def take(self) -> list[SeriesChange]:
        """Return the changes since the last call."""
        if not self._changed:
            return []
        with self._lock:
            changed, self._changed = self._changed, {}
        return list(changed.values())

    def families(self) -> list[MetricSamples]:
        """Return all series for display."""
        families: dict[FamilyHead, MetricSamples] = {}
        with self._lock:
            for series in self._whole.values():
                head = series.head
                if head not in families:
                    families[head] = MetricSamples(head.name, head.kind, head.text, [])
                families[head].samples += _shown(series)
        return list(families.values())

    def _merge(self, change: SeriesChange) -> None:
        key = change.head.name, change.labels
        if key not in self._whole and len(self._whole) >= MAX_SERIES:
            if not self._is_over_full:
                self._is_over_full = True
                _LOGGER.warning(
                    "metric '%s': there are %d series already, counts in further ones are lost",
                    change.head.name,
                    MAX_SERIES,
                )
            return
        _add(self._whole, key, change)
        if self._keeps_changes:
            _add(self._changed, key, change)


def _add(
    book: dict[tuple[str, Labels], SeriesChange], key: tuple[str, Labels], change: SeriesChange
) -> None:
    known = book.get(key)
    if known is None:
        book[key] = SeriesChange(
            change.head, change.labels, change.value, change.is_set, list(change.counts)
        )
        return
    known.value = change.value if change.is_set else known.value + change.value
    known.is_set |= change.is_set
    known.counts = [mine + more for mine, more in zip(known.counts, change.counts, strict=True)]


def _shown(series: SeriesChange) -> Iterator[tuple[str, dict[str, str], float]]:
    name, labels = series.head.name, dict(series.labels)
    if series.head.kind != "histogram":
        yield name, labels, series.value
        return
    bounds = [*map(repr, series.head.buckets), "+Inf"]
    for bound, up_to in zip(bounds, accumulate(series.counts), strict=True):
        yield f"{name}_bucket", {**labels, "le": bound}, up_to
    yield f"{name}_count", labels, sum(series.counts)
    yield f"{name}_sum", labels, series.value


LEDGER: Ledger = Ledger()
"""The series of this process."""


class _Counted:
    """One series; it may be kept, copied and pickled, because it has no value itself."""

    kind: Kind = "counter"

    def __init__(self, head: FamilyHead, labels: Labels) -> None:
        self._head = head
        self._labels = labels

    def _count(self, value: float, is_set: bool = False) -> None:
        value = float(value)
        if math.isnan(value) and self.kind != "gauge":
            raise ValueError(f"metric '{self._head.name}': NaN cannot be counted")
        LEDGER.change(self._head, self._labels, value, is_set)


class Counter(_Counted):
    """Count that only rises. Its name ends in `_total` in `/metrics`."""

    def inc(self, amount: float = 1.0) -> None:
        """Add to it. ValueError: the amount is negative."""
        if amount < 0:
            raise ValueError(f"metric '{self._head.name}': a counter cannot fall, by {amount}")
        self._count(amount)


class Gauge(_Counted):
    """Value that rises and falls; if several processes set it, the last one counts."""

    kind: Kind = "gauge"

    def set(self, value: float) -> None:
        """Set the value."""
        self._count(value, is_set=True)

    def inc(self, amount: float = 1.0) -> None:
        """Add to the value."""
        self._count(amount)

    def dec(self, amount: float = 1.0) -> None:
        """Subtract from the value."""
        self._count(-amount)


class Histogram(_Counted):
    """Counts of values by their size, and their sum."""

    kind: Kind = "histogram"

    def observe(self, value: float) -> None:
        """Record one value."""
        self._count(value)


class Metrics:
    """Source of metrics for user code: equal names and labels are one series.

    Names and labels follow Prometheus; names that begin with `pipeline_`, `process_`, `python_`,
    `pd_` or Triton's `nv_` are reserved. Each method raises ValueError for an invalid name or
    label, and for a name that exists as another kind.
    """

    def counter(self, name: str, text: str = "", /, **labels: object) -> Counter:
        """Return the counter of a name; `_total` is appended if it is missing."""
        name = f"{name.removesuffix('_total')}_total"
        return Counter(LEDGER.head(FamilyHead(name, "counter", text)), _labels(labels, "counter"))

    def gauge(self, name: str, text: str = "", /, **labels: object) -> Gauge:
        """Return the gauge of a name."""
        return Gauge(LEDGER.head(FamilyHead(name, "gauge", text)), _labels(labels, "gauge"))

    def histogram(
        self, name: str, text: str = "", buckets: Sequence[float] = SECONDS, /, **labels: object
    ) -> Histogram:
        """Return the histogram of a name; all of one name have the buckets of the first."""
        bounds = tuple(map(float, buckets))
        head = LEDGER.head(FamilyHead(name, "histogram", text, bounds))
        return Histogram(head, _labels(labels, "histogram"))


def _labels(labels: dict[str, object], kind: Kind) -> Labels:
    if not labels:
        return ()
    pairs = tuple(sorted((name, str(value)) for name, value in labels.items()))
    check_labels(pairs, kind)
    return pairs


METRICS: Metrics = Metrics()
"""The object behind `context.metrics`, `counter`, `gauge` and `histogram`."""

counter: Callable[..., Counter] = METRICS.counter
gauge: Callable[..., Gauge] = METRICS.gauge
histogram: Callable[..., Histogram] = METRICS.histogram
