"""`MetricFamily` and its `Metric`s: what models count in, shown by `/metrics` of the server."""

from __future__ import annotations

import itertools
import queue
from collections.abc import Callable, Mapping
from typing import Any

from pipeline.engine.model_calls import MetricUse, ModelCaller, ModelPart
from pipeline.errors import PipelineError
from pipeline.repository.backends.python.calls import ServerAccess
from pipeline.repository.backends.python.tensors import TritonModelException

_NUMBERS = itertools.count(1)
_KINDS = ("counter", "gauge", "histogram")
_CAN = {"increment": ("counter", "gauge"), "set": ("gauge",), "observe": ("histogram",)}
_ACTIONS = {"increment": "add", "set": "set", "observe": "observe"}
_DELETED = (
    "Invalid metric operation as the corresponding 'MetricFamily' has been deleted. The "
    "'MetricFamily' object should be deleted AFTER its corresponding 'Metric' objects have been "
    "deleted."
)


class Metric:
    """One series of a family, which is there as long as the family.

    A value is told to the server without waiting for it, in the order of the calls.
    """

    def __init__(self, caller: ModelCaller, number: int, kind: str, labels: dict[str, str]) -> None:
        self.is_deleted: bool = False
        self._caller = caller
        self._number = number
        self._kind = kind
        self._labels = labels

    def increment(self, value: float) -> None:
        """Add to the value. TritonModelException: it is negative, and this a counter."""
        if self._kind == "counter" and value < 0:
            raise TritonModelException(
                "Failed to increment metric value: TRITONSERVER_METRIC_KIND_COUNTER can only be "
                "incremented monotonically by non-negative values."
            )
        self._tell("increment", value)

    def set(self, value: float) -> None:
        """Set the value of a gauge. TritonModelException: it is none."""
        self._tell("set", value)

    def observe(self, value: float) -> None:
        """Take note of one value of a histogram. TritonModelException: it is none."""
        self._tell("observe", value)

    def value(self) -> float:
        """Return the value, with what all models count in it. TritonModelException: it has none."""
        about = "Failed to get metric value"
        self._check(about)
        if self._kind == "histogram":
            raise self._unsupported(about, "Value")
        use = MetricUse(self._number, "value", labels=self._labels)
        return _asked(self._caller, use, about)

    def _tell(self, what: str, value: float) -> None:
        about = f"Failed to {what} metric value"
        self._check(about)
        if self._kind not in _CAN[what]:
            raise self._unsupported(about, what.capitalize())
        action: Any = _ACTIONS[what]
        use = MetricUse(self._number, action, labels=self._labels, amount=float(value))
        _caught(lambda: self._caller.metric(use, None), about)

    def _check(self, about: str) -> None:
        if self.is_deleted:
            raise TritonModelException(f"{about}: {_DELETED}")

    def _unsupported(self, about: str, what: str) -> TritonModelException:
        kind = f"TRITONSERVER_METRIC_KIND_{self._kind.upper()}"
        return TritonModelException(f"{about}: {kind} does not support {what}")


class MetricFamily:
    """Series of one name, which are there as long as this is.

    Args:
        name: in `/metrics`.
        description: that is there with it.
        kind: COUNTER, GAUGE or HISTOGRAM.

    Raises:
        TritonModelException: the server has one of this name and another kind, or does not take it.
    """

    COUNTER = 0
    GAUGE = 1
    HISTOGRAM = 2

    def __init__(self, name: str, description: str, kind: int) -> None:
        about = "Error when creating MetricFamily"
        if kind not in range(len(_KINDS)):
            raise TritonModelException(f"{about}: Unknown metric kind")
        self._series: dict[tuple[tuple[str, str], ...], Metric] = {}
        self._kind = _KINDS[kind]
        self._number = next(_NUMBERS)
        caller = ServerAccess.get()
        use = MetricUse(self._number, "family", name=name, text=description, kind=self._kind)
        _asked(caller, use, about)
        self._caller: ModelCaller = caller  # from here on it is the server's, too

    def Metric(
        self, labels: Mapping[str, str] | None = None, buckets: list[float] | None = None
    ) -> Metric:
        """Return the series of these labels. TritonModelException: it cannot be had."""
        about = "Failed to create metric"
        labels = {} if labels is None else labels
        if not isinstance(labels, dict):
            raise TritonModelException(f"{about}. Labels must be a dictionary.")
        if not all(isinstance(text, str) for each in labels.items() for text in each):
            raise TritonModelException(f"{about}. Labels and their values must be str.")
        self._check_buckets(about, buckets)
        bounds = [float(bound) for bound in buckets or ()]
        use = MetricUse(self._number, "series", labels=labels, buckets=bounds)
        key = tuple(sorted(labels.items()))
        if key not in self._series:
            _asked(self._caller, use, "Error when creating Metric")
        made = Metric(self._caller, self._number, self._kind, dict(labels))
        return self._series.setdefault(key, made)

    def _check_buckets(self, about: str, buckets: Any) -> None:
        if buckets is None:
            if self._kind == "histogram":
                raise TritonModelException(f"{about}. Missing required buckets.")
        elif not isinstance(buckets, list):
            raise TritonModelException(f"{about}. Buckets must be a list.")
        elif self._kind != "histogram":
            raise TritonModelException(f"{about}. Unexpected buckets found.")

    def __del__(self) -> None:
        caller = getattr(self, "_caller", None)  # its `__init__` may have failed
        if caller is not None:
            for metric in self._series.values():
                metric.is_deleted = True
            caller.drop_metrics(MetricUse(self._number, "drop"))


def _asked(caller: ModelCaller, use: MetricUse, about: str) -> float:
    """Return the server's answer. TritonModelException: it is an error, as `about` says."""
    answers: queue.SimpleQueue[ModelPart] = queue.SimpleQueue()
    _caught(lambda: caller.metric(use, answers.put), about)
    found = answers.get()
    if found.error is not None:
        raise TritonModelException(f"{about}: {found.error}")
    return found.value


def _caught(work: Callable[[], None], about: str) -> None:
    try:
        work()
    except PipelineError as error:
        raise TritonModelException(f"{about}: {error}") from None
