"""ChannelData, which passes through the graph; RequestContext, for hooks; Tensor, for Ops."""

from __future__ import annotations

import enum
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
from msgspec import field

from pipeline.errors import ConfigError, ErrorCode, PipelineError, ProductError, one_line
from pipeline.metrics import METRICS, Metrics


class ChannelDataType(enum.Enum):
    """Kinds of content of a `ChannelData`, with the predecessor's names and numbers."""

    DICT = 0
    CHANNEL_NPDATA = 1
    ERROR = 2


class ChannelData(msgspec.Struct, frozen=True):
    """One Op's answer for one request: a payload, or an error in its place.

    `payload` is the dict that the Op's `postprocess` returned. `data_id` is the server's own
    running number of the request, `log_id` the client's. The properties are the names under which
    scripts of Paddle Serving read the record in `pack_response_package`.
    """

    data_id: int
    log_id: int = 0
    payload: Any = None
    error: PipelineError | None = None
    as_tensors: bool = False
    client_need_profile: bool = False

    @property
    def id(self) -> int:
        return self.data_id

    @property
    def datatype(self) -> int:
        if self.error is not None:
            return ChannelDataType.ERROR.value
        if isinstance(self.payload, Mapping) and not self.check_npdata(self.payload)[0]:
            return ChannelDataType.CHANNEL_NPDATA.value
        return ChannelDataType.DICT.value

    @property
    def dictdata(self) -> Any:
        return None if self.datatype != ChannelDataType.DICT.value else self.payload

    @property
    def npdata(self) -> Any:
        return None if self.datatype != ChannelDataType.CHANNEL_NPDATA.value else self.payload

    @property
    def error_code(self) -> int:
        """Return the code; 0: no error; PRODUCT_ERROR for a ProductError, see `prod_error_code`."""
        if self.error is None:
            return ErrorCode.OK.value
        if isinstance(self.error, ProductError):
            return ErrorCode.PRODUCT_ERROR.value
        return int(self.error.code)

    @property
    def error_info(self) -> str:
        """Return the text of `error_code`; "" for a ProductError, see `prod_error_info`."""
        has_no_text = self.error is None or isinstance(self.error, ProductError)
        return "" if has_no_text else str(self.error)

    @property
    def prod_error_code(self) -> int | None:
        return self.error.code if isinstance(self.error, ProductError) else None

    @property
    def prod_error_info(self) -> str:
        return str(self.error) if isinstance(self.error, ProductError) else ""

    @property
    def profile_data_set(self) -> frozenset[str]:
        return frozenset()

    def parse(self) -> Any:
        """Return the payload; raises the error when there is one in its place."""
        if self.error is not None:
            raise self.error
        return self.payload

    def get_all_data(self) -> str:
        return (
            f"type[{self.datatype}], error_code[{self.error_code}], data_id[{self.data_id}], "
            f"log_id[{self.log_id}], data[{self.payload!r}]"
        )

    @staticmethod
    def check_dictdata(dictdata: object) -> tuple[int, str]:
        """Return (0, "") for a dict, or a list of dicts; otherwise TYPE_ERROR and a text."""
        items = dictdata if isinstance(dictdata, list) else [dictdata]
        others = [type(item) for item in items if not isinstance(item, dict)]
        if not others:
            return ErrorCode.OK.value, ""
        text = f"Failed to check data: the type of data must be dict, but get {others[0]}."
        return ErrorCode.TYPE_ERROR.value, text

    @staticmethod
    def check_npdata(npdata: object) -> tuple[int, str]:
        """Return (0, "") for a dict of ndarrays and lists of str, or a list of such dicts."""
        items = npdata if isinstance(npdata, list) else [npdata]
        problem = next(filter(None, map(_not_feedable, items)), "")
        return (ErrorCode.TYPE_ERROR.value if problem else ErrorCode.OK.value), problem

    @staticmethod
    def check_batch_npdata(batch: Sequence[object]) -> tuple[int, str]:
        """Return the result of `check_npdata` for the first element that it refuses, or (0, "")."""
        checks = map(ChannelData.check_npdata, batch)
        return next((check for check in checks if check[0]), (ErrorCode.OK.value, ""))


def _not_feedable(item: object) -> str:
    """Return why `item` cannot be fed to a model; "": it can."""
    if not isinstance(item, Mapping):
        return f"Failed to check data: the value of data must be dict, but get {type(item)}."
    for name, value in item.items():
        if isinstance(value, np.ndarray):
            continue
        if isinstance(value, list) and all(isinstance(element, str) for element in value):
            continue
        return (
            f"Failed to check data: feed_batch must be npdata: the value of {name!r} must be "
            f"np.ndarray or list[str], but get {type(value)}."
        )
    return ""


class RequestInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Data of a request besides its inputs: id, parameters, headers and so on.

    Args:
        id: of a v2 request, also in its answer; "" for none.
        parameters: all parameters of a v2 request.
        headers: HTTP headers and gRPC metadata that `dag.forward_headers` names, by their names in
            lower case; of several with one name the last.
        sequence_id: the sequence of the request; 0 or "" for none.
        sequence_start: whether it is the first of its sequence.
        sequence_end: whether it is the last of its sequence.
        priority: of a v2 request; 0: not set.
        outputs: names of the outputs that a v2 request asks for; empty: all.
    """

    id: str = ""
    parameters: Mapping[str, bool | int | float | str] = {}
    headers: Mapping[str, str] = {}
    sequence_id: int | str = 0
    sequence_start: bool = False
    sequence_end: bool = False
    priority: int = 0
    outputs: tuple[str, ...] = ()


NO_INFO = RequestInfo()
_OF_PROTOCOL = {"sequence_id", "sequence_start", "sequence_end", "priority", "timeout"}


def own_parameters(info: RequestInfo) -> dict[str, bool | int | float | str]:
    """Return the client's own parameters, and the forwarded headers."""
    if not info.parameters and not info.headers:  # the common case
        return {}
    own = {
        name: value
        for name, value in info.parameters.items()
        if name not in _OF_PROTOCOL and not name.startswith("triton_")
    }
    return {**info.headers, **own}


class SequenceStep(msgspec.Struct, frozen=True, kw_only=True):
    """One request of a sequence, at an Op that has `sequence` configured.

    Args:
        id: of the sequence; each Op has sequences of its own.
        start: whether it is the first of its sequence: state under this id has to be reset.
        end: whether it is the last.
        slot: the place of the sequence at its worker from its first request to its last, from 0; no
            other sequence has it meanwhile.
    """

    id: int | str
    start: bool = False
    end: bool = False
    slot: int = 0


class RequestContext(RequestInfo, frozen=True, eq=False, kw_only=True):
    """A request, for a hook that has a parameter called `context`.

    Args:
        data_id: the server's own running number of the request.
        log_id: the client's number; 0 before `unpack_request_package` has returned it.
        deadline: when the client stops waiting, in `time.monotonic`; None: never.
        is_over: called by `is_cancelled`.
        state: the Op's state for the request, empty at first: with `batching: iterative` it is
            there
            at every step. Replace its values, do not change them in place.
        sequence: the step of the request in its sequence; None: the Op has no `sequence`
            configured.
    """

    data_id: int
    log_id: int = 0
    deadline: float | None = None
    is_over: Callable[[], bool] = bool
    state: dict[str, Any] = field(default_factory=dict)
    sequence: SequenceStep | None = None

    @property
    def metrics(self) -> Metrics:
        """Return the counters, gauges and histograms of `/metrics`; see `pipeline.metrics`."""
        return METRICS

    def time_left(self) -> float | None:
        """Return the seconds until `deadline`, negative after it; None: there is none."""
        return None if self.deadline is None else self.deadline - time.monotonic()

    def is_cancelled(self) -> bool:
        """Return whether nobody waits for the answer any more, so that the work may stop."""
        return self.is_over()


def context_of(
    request: Any,
    info: RequestInfo,
    is_over: Callable[[], bool] = bool,
    sequence: SequenceStep | None = None,
) -> RequestContext:
    """Return the context of `request`, which has data_id, log_id and deadline."""
    if info is NO_INFO and sequence is None:  # the common case
        return RequestContext(
            data_id=request.data_id,
            log_id=request.log_id,
            deadline=request.deadline,
            is_over=is_over,
        )
    return RequestContext(
        id=info.id,
        parameters=info.parameters,
        headers=info.headers,
        sequence_id=info.sequence_id,
        sequence_start=info.sequence_start,
        sequence_end=info.sequence_end,
        priority=info.priority,
        outputs=info.outputs,
        data_id=request.data_id,
        log_id=request.log_id,
        deadline=request.deadline,
        is_over=is_over,
        sequence=sequence,
    )


def contexts_of(items: Sequence[Any], places: Sequence[int] | None) -> list[RequestContext]:
    """Return the contexts of a batch's items; `places` are the slots of their sequences."""
    steps = [None] * len(items) if places is None else steps_of(items, places)
    pairs = zip(items, steps, strict=True)
    return [context_of(item, item.info, item.is_cancelled, step) for item, step in pairs]


def steps_of(items: Sequence[Any], places: Sequence[int]) -> list[SequenceStep]:
    """Return the step of each of a batch's items in its sequence; `places` are their slots."""
    pairs = zip([item.info for item in items], places, strict=True)
    return [
        SequenceStep(
            id=step.sequence_id, start=step.sequence_start, end=step.sequence_end, slot=place
        )
        for step, place in pairs
    ]


DATATYPES = frozenset(f"{kind}{bits}" for kind in ("INT", "UINT") for bits in (8, 16, 32, 64)) | {
    "BOOL",
    "FP16",
    "BF16",
    "FP32",
    "FP64",
    "BYTES",
}

_MIN_BATCH = 4

ANY = -1
"""A dimension of any size."""


class Tensor(msgspec.Struct, frozen=True):
    """One input or output of an Op or of a pipeline.

        class WordsOp(RequestOp):
            input_tensors = [Tensor("words", "BYTES", (1,))]

        class CombineOp(Op):
            output_tensors = [Tensor("prediction", "FP32", (1,))]

    A pipeline's inputs are those of its RequestOp, its outputs those of the Op that the ResponseOp
    reads, or of the ResponseOp if it declares any. An Op that reads several others sets, for each
    input, which of them it comes from (`source`); clients know it as "source.name".

    Args:
        name: key in the dict that `preprocess` reads, or that `postprocess` returns.
        datatype: one of DATATYPES. BYTES is text or bytes.
        shape: with -1 for any size; without the batch if the Op has a `max_batch_size`.
        source: name of the Op that an input comes from.

    Raises:
        ConfigError: an unknown datatype, or a dimension below -1.
    """

    name: str
    datatype: str
    shape: tuple[int, ...] = (ANY,)
    source: str = ""

    def __post_init__(self) -> None:
        if self.datatype not in DATATYPES:
            known = ", ".join(sorted(DATATYPES))
            raise ConfigError(
                f"Tensor {self.name!r}: expected a datatype of {known}, found {self.datatype!r}"
            )
        if any(type(size) is not int or size < ANY for size in self.shape):
            raise ConfigError(
                f"Tensor {self.name!r}: shape {self.shape!r} must have sizes, or -1 for any"
            )

    @property
    def full_name(self) -> str:
        """Return its name in the v2 protocol."""
        return f"{self.source}.{self.name}" if self.source else self.name


def declared(op: Any, attribute: str) -> tuple[Tensor, ...]:
    """Return the Tensors in an Op's `input_tensors` or `output_tensors`; () if there are none.

    Old scripts may use the names for other things: values without a Tensor are ignored.

    Raises:
        ConfigError: there are Tensors, but not in a list of Tensors only.
    """
    listed = getattr(op, attribute, ())
    values = listed.values() if isinstance(listed, dict) else listed
    items = [*values] if isinstance(listed, list | tuple | set | dict) else [listed]
    if not any(isinstance(item, Tensor) for item in items):
        return ()
    if not isinstance(listed, list | tuple) or not all(isinstance(item, Tensor) for item in items):
        shown = one_line(repr(listed))
        raise ConfigError(f"Op {op.name!r}: {attribute} has to be a list of Tensors, found {shown}")
    return tuple(listed)


def declares(op: Any) -> bool:
    """Return whether an Op declares its inputs or outputs."""
    return bool(declared(op, "input_tensors") or declared(op, "output_tensors"))


def announced_batch(most: int, batch_size: int) -> int:
    """Return the samples that a loaded model takes at once: as its Op declares, or as configured.

    As in Triton, it is at least 4 for a model that takes any number.
    """
    return most or max(_MIN_BATCH, batch_size)


def max_batch_size_of(op: Any) -> int:
    """Return the samples that an Op takes at once: its `max_batch_size`; 0 if it has none.

    Like `declared` it ignores other uses of the name.

    Raises:
        ConfigError: it is not a whole number >= 0, although the Op declares tensors.
    """
    most = getattr(op, "max_batch_size", 0)  # the class is the user's
    is_whole = isinstance(most, int | np.integer) and not isinstance(most, bool)
    if is_whole and most >= 0:
        return int(most)
    if declares(op):
        raise ConfigError(
            f"Op {op.name!r}: max_batch_size has to be a whole number, 0 or more, found {most!r} "
            f"({type(most).__name__})"
        )
    return 0
