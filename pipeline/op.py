"""Op, RequestOp and ResponseOp: the classes that users derive from. No threads, no sockets."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
import numpy as np

from pipeline.data import ChannelData, RequestContext, Tensor
from pipeline.errors import GraphError, NotImplementedByOpError, PackageError
from pipeline.proto import codec, pipeline_service_pb2
from pipeline.proto.pipeline.response import pack, pack_error
from pipeline.proto.slices import SLICE, breathe
from pipeline.routes import names_of_ops

if TYPE_CHECKING:
    from pipeline.config.schema import OpConfig
    from pipeline.config.sequences import Control
    from pipeline.schema.bound import BoundSchema
    from pipeline.tracing.running import Notes

EXECUTOR_NAME = "@DAGExecutor"
"""The name of RequestOp and ResponseOp, and the key of a first Op's `input_dicts`."""

PROFILE_KEY = "pipeline.profile"
"""A request pair of this name asks for a profile of the request; it is not data."""

_STR = frozenset({str})


class _PredictorClient(Protocol):
    """The part of `self.client` that `Op.process` needs."""

    def predict(self, feed: Any, fetch: Any = None, *, log_id: int = 0, **more: Any) -> Any: ...


class WorkerSpec(msgspec.Struct, frozen=True, array_like=True):
    """Description of an Op that a new process makes, because it was not forked with the Op.

    Args:
        make: "module:function" of this library, which returns the Op for `argument`.
        argument: msgpack.
    """

    make: str
    argument: bytes


_numbers = itertools.count()


def _hook(method: Callable[..., Any]) -> Callable[..., Any]:
    """Mark a method that users override in any of several forms, `async def` or not.

    Type checkers see `(...) -> Any`: with any declared form, all other forms would be incompatible
    overrides. `engine.run.hooks` checks the forms when a server starts.
    """
    return method


class Op:
    """One step of a pipeline: derive from it, and override what differs from the default.

    A request passes `preprocess` (once a request), `process` (once a batch, if the Op has a model
    or overrides it) and `postprocess` (once a request). Every worker has its own shallow copy of
    the Op, made after `init_op`: what a method stores on `self` is not shared with requests that
    run at the same time.

    Args:
        name: unique in the graph; the key under `op:` in config.yml and the key of this Op's answer
            in `input_dicts` of its successors. Default "Op0", "Op1", ...
        input_ops: the Ops whose answers this one reads; a single Op or a list.
        server_endpoints: "host:port" of remote model services.
        fetch_list: names of the model outputs to fetch; default all.
        client_config: path of the client's prototxt (brpc).
        client_type: "local_predictor", "brpc", "grpc", ...
        concurrency: number of workers, >= 1.
        timeout: ms for one call of `process`; <= 0 for none.
        retry: attempts of `process` on a timeout or a retryable predictor error; 0 = not given.
        batch_size: at most this many requests are merged into one call of `process`.
        auto_batching_timeout: ms that the first request of a batch waits for others.
        local_service_handler: accepted for scripts that pass one.
        jump_to_ops: see `check_jumping`.
        fuse: False: its methods run only on the Op's own threads, never on those of the Op before
            it.
        loop_to: Ops, or their names, that a `Goto` of this Op may run again: itself, or Ops whose
            answers lead to it.
        max_loops: how often it may do so for one request, >= 1; one more is an error.
        gather: True: it gets all parts of a stream at once: `input_dicts` has a list of them.
        sequence: "direct" or "oldest", or a mapping as in `op.<name>.sequence`: requests with one
            `sequence_id` stay at one worker, one after the other.
        dynamic_batching: a mapping as in `op.<name>.dynamic_batching`; it also sets `batching:
            dynamic`.

    A value given here overrides config.yml, and config.yml overrides the default.
    """

    # Attributes that scripts may read and set: documented, or names of the predecessor.
    client: _PredictorClient | None = None
    concurrency_idx: int | None = None
    with_serving: bool = False
    input_tensors: Sequence[Tensor] = ()  # for the v2 protocol, see `tensors`
    output_tensors: Sequence[Tensor] = ()
    concurrency: int
    client_type: str | None
    model_config: str | None
    devices: str
    thread_num: int
    right_feed_names: list[str]
    right_fetch_names: list[str]
    _fetch_names: list[str] | None
    _server_endpoints: tuple[str, ...]
    _batch_size: int
    _retry: int
    _timeout: float
    _auto_batching_timeout: float | None
    # Names of this library's own attributes begin with `pipeline_`, so that scripts do not use them
    # by chance.
    pipeline_config: OpConfig
    pipeline_in_a_graph: bool = False
    pipeline_base_dir: Path = Path()  # the folder of relative file names in config.yml
    pipeline_spec: WorkerSpec | None = None  # of an Op that processes make themselves
    pipeline_interpreter: Any = None  # an Interpreter that its process runs; None: the server's
    pipeline_warm_up: Sequence[Any] = ()  # WarmUpSamples, which each worker runs at its start
    pipeline_models: Any = None  # a ModelCaller, in a worker that may call models of its server
    pipeline_step: Any = None  # a ModelStep, of an Op whose workers are models
    pipeline_is_quick: bool = False  # for this library's Ops, see `runs_on_the_loop`
    pipeline_patience_s: float = 1.0  # for a worker whose result nobody needs any more
    pipeline_ragged: frozenset[str] = frozenset()  # inputs whose shapes may differ in a batch
    pipeline_ragged_batch: Any = None  # a RaggedBatch with rules that config.yml cannot express
    pipeline_merges: bool = (
        True  # False: `process` gets a list of feeds, and returns a list of results
    )
    pipeline_hands_on: bool = False  # True: its own methods feed the model what clients sent
    pipeline_controls: Sequence[Control] = ()  # controls that `process` itself adds to its requests
    pipeline_notes: Notes | None = None  # about requests, for logs that name them
    pipeline_packs_tensors: bool | None = None  # the argument of `set_pack_tensor_format`

    def __init__(
        self,
        name: str | None = None,
        input_ops: Op | Iterable[Op] | None = [],
        server_endpoints: list[str] | None = None,
        fetch_list: list[str] | None = None,
        client_config: str | None = None,
        client_type: str | None = None,
        concurrency: int | None = None,
        timeout: float | None = None,
        retry: int = 0,
        batch_size: int | None = None,
        auto_batching_timeout: float | None = None,
        local_service_handler: Any = None,
        jump_to_ops: Op | Iterable[Op] | None = [],
        fuse: bool | None = None,
        loop_to: str | Op | Iterable[str | Op] = (),
        max_loops: int = 100,
        gather: bool = False,
        sequence: str | Mapping[str, object] | None = None,
        dynamic_batching: Mapping[str, object] | None = None,
    ) -> None:
        self.name: str = f"Op{next(_numbers)}" if name is None else name
        self.pipeline_given: Mapping[str, object] = {
            "server_endpoints": server_endpoints,
            "fetch_list": fetch_list,
            "client_config": client_config,
            "client_type": client_type,
            "concurrency": concurrency,
            "timeout": timeout,
            "retry": retry,
            "batch_size": batch_size,
            "auto_batching_timeout": auto_batching_timeout,
            "local_service_handler": local_service_handler,
            "fuse": fuse,
            "sequence": sequence,
            "dynamic_batching": dynamic_batching,
        }
        self.pipeline_gathers: bool = gather
        self.pipeline_consumers: weakref.WeakSet[Op] = weakref.WeakSet()
        self._input_ops: list[Op] = []
        self._jump_to_ops: list[Op] = []
        self.set_input_ops(input_ops)
        self.set_jump_to_ops(jump_to_ops)
        self.pipeline_loop_to: tuple[str, ...] = names_of_ops(loop_to)
        self.pipeline_max_loops: int = max_loops
        self.dynamic_shape_info: dict[str, Any] = dict(
            getattr(local_service_handler, "dynamic_shape_info", {})
        )
        self.set_dynamic_shape_info()

    # Methods that users override ---------------------------------------------------------

    @_hook
    def init_op(self) -> None:
        """Load what the Op needs. Runs once an Op (thread workers), before the server is ready.

        `self.client` is set already. An exception makes the start of the server fail.
        """

    @_hook
    def preprocess(
        self, input_dicts: dict[str, dict[str, Any]], data_id: int = 0, log_id: int = 0
    ) -> Any:
        """Turn the answers of the input Ops into the feed of `process`; once a request.

        Args:
            input_dicts: `{name of the input Op: its answer}`; a first Op's key is "@DAGExecutor".
            data_id: the server's running number of the request.
            log_id: the number that the client sent, 0 if none.

        Returns:
            `(data, is_skip_process, prod_errcode, prod_errinfo)`, or just `data`: a dict of
                ndarrays
            whose axis 0 is the batch, or a list of such dicts (a mini-batch, run one by one). A
            `prod_errcode` that is not None ends the request with that code. Methods with fewer
            parameters, down to `(self, input_dicts)`, are called with fewer.
        """
        if len(input_dicts) != 1:
            raise NotImplementedByOpError(
                f"Op {self.name!r} reads {len(input_dicts)} Ops ({', '.join(input_dicts)}): "
                "override preprocess to combine their answers."
            )
        (answer,) = input_dicts.values()
        return answer, False, None, ""

    @_hook
    def process(
        self,
        feed_batch: list[Any],
        typical_logid: int = 0,
        *,
        context: Sequence[RequestContext] = (),
    ) -> Any:
        """Run the model; once a batch. By default `self.client.predict(feed_batch[0])`.

        Args:
            feed_batch: a list of one dict: the samples of the batch merged along axis 0.
            typical_logid: the log id of the batch's first request.
            context: of its requests, for a predictor that checks whether they were cancelled.

        Returns:
            `(result, err_code, err_info)` or just the result: a dict whose values have one row
                (axis 0)
            for every row that was fed, so that it can be split again.
        """
        if self.client is None:
            raise NotImplementedByOpError(
                f"Op {self.name!r} has no model: set local_service_conf.model_config or "
                "server_endpoints, or override process."
            )
        if context:
            return self.client.predict(
                feed_batch[0], self._fetch_names, log_id=typical_logid, context=context
            )
        return self.client.predict(
            feed=feed_batch[0], fetch=self._fetch_names, log_id=typical_logid
        )

    @_hook
    def postprocess(
        self,
        input_dicts: dict[str, dict[str, Any]],
        fetch_data: Any,
        data_id: int = 0,
        log_id: int = 0,
    ) -> Any:
        """Turn the model's answer for one request into the Op's answer.

        Args:
            input_dicts: the object that `preprocess` got.
            fetch_data: this request's rows of the result of `process`; a list of results for a
                mini-batch; the result of `preprocess` if `process` did not run.
            data_id: as in `preprocess`.
            log_id: as in `preprocess`.

        Returns:
            `(dict, prod_errcode, prod_errinfo)` or just the dict.
        """
        return fetch_data if isinstance(fetch_data, dict) else {}, None, ""

    @_hook
    def check_jumping(self, input_data: Any) -> bool:
        """Return True to send the batch's answers past the next Ops; for an Op with `jump_to_ops`.

        They go where the answers of the jump targets go, under this Op's name.

        Args:
            input_data: an OrderedDict `{data_id: ChannelData}` of the batch after postprocess.
        """
        return False

    def set_dynamic_shape_info(self) -> None:
        """Set `self.dynamic_shape_info` (min/max/opt input shapes) for TensorRT."""

    # Wiring ------------------------------------------------------------------------------

    def get_input_ops(self) -> list[Op]:
        return self._input_ops

    def set_input_ops(self, ops: Op | Iterable[Op] | None) -> None:
        """Set the Ops that this one reads."""
        for op in self._input_ops:
            op.pipeline_consumers.discard(self)
        self._input_ops = _as_ops(self, ops, "input_ops")
        for op in self._input_ops:
            op.pipeline_consumers.add(self)

    def get_jump_to_ops(self) -> list[Op]:
        return self._jump_to_ops

    def set_jump_to_ops(self, ops: Op | Iterable[Op] | None) -> None:
        """Set the Ops that `check_jumping` may send a batch to."""
        self._jump_to_ops = _as_ops(self, ops, "jump_to_ops")

    def is_jump_op(self) -> bool:
        return bool(self._jump_to_ops)

    def set_pack_tensor_format(self, is_tensor_format: bool = False) -> None:
        """Set the form in which data leaves this Op: as tensors, or (False) as text.

        This applies to the answer, if it is the last Op of the pipeline, and to requests to another
        pipeline server (`client_type: pipeline_grpc`, by default tensors).
        """
        self.pipeline_packs_tensors = is_tensor_format

    @staticmethod
    def get_feed_fetch_list(client: Any) -> tuple[list[str], list[str]]:
        """Return the names of the inputs and of the outputs of `self.client`."""
        return list(client.feed_names), list(client.fetch_names)

    def use_default_auto_batching_config(self) -> None:
        """Switch batching off for this Op; call it before `prepare_server`."""
        self.pipeline_given = {**self.pipeline_given, "batch_size": 1}

    def _log(self, info: str) -> str:
        return f"{self.name} {info}"

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}>"


class RequestOp(Op):
    """The entry of a pipeline: turns a request into the first Ops' input.

    Args:
        schema: the type of a request: a class derived from `Schema`, a TypedDict, a dataclass, a
            msgspec.Struct or a model of pydantic. It checks the result of `unpack_request_package`,
            and requests that come without it: the first Ops get its keys, converted.

    Raises:
        ConfigError: the schema is not such a type.
    """

    pipeline_schema: BoundSchema | None = None

    def __init__(self, schema: Any = None) -> None:
        super().__init__(name=EXECUTOR_NAME)
        self.pipeline_schema = _bound(schema)

    @_hook
    def unpack_request_package(self, request: pipeline_service_pb2.Request) -> Any:
        """Turn a request into a dict.

        Returns:
            `(dict, log_id, prod_errcode, prod_errinfo)` or just the dict. Pairs of `key` and
                `value`
            become str; tensors become ndarrays, str or bytes, and a tensor's LoD an int32 array
                under
            "<name>.lod". A tensor replaces a pair of the same name. One text in a tensor of one
            dimension is a str, and values without a key are ignored, as in the predecessor.
        """
        keys, values = request.key, request.value
        if len(keys) > len(values):
            raise PackageError(
                f"request has {len(keys)} keys but {len(values)} values: send one value a key"
            )
        is_short = len(keys) <= SLICE
        data = dict(zip(keys, values, strict=False)) if is_short else _pairs(keys, values)
        data.pop(PROFILE_KEY, None)
        if request.tensors:
            # then a text differs from a list of one text
            is_typed = self.pipeline_schema is not None
            decode = codec.decode_tensors if is_typed else codec.decode_request
            data.update(decode(request.tensors))
        return data, request.logid, None, ""

    def proto_tensor_2_numpy(self, tensor: pipeline_service_pb2.Tensor) -> tuple[Any, Any]:
        """Return `(value, lod)` of one tensor; `lod` is a 1-D int32 array, or None."""
        lod = np.array(tensor.lod, dtype=np.int32) if tensor.lod else None
        return codec.tensor_to_numpy(tensor), lod


class ResponseOp(Op):
    """The end of a pipeline: turns the last Op's answer into a response.

    Args:
        input_ops: the last Op, or a list of it alone.
        combine: makes one answer of the parts of a stream, a list of dicts, for clients that take
            only one. None: text, bytes and lists are appended, arrays concatenated along axis 0, of
            other values the last one counts.
        schema: the type of an answer, and of each part of a stream, as in RequestOp: an answer that
            does not fit is a TYPE_ERROR.

    Raises:
        ConfigError: the schema is not such a type.
    """

    pipeline_schema: BoundSchema | None = None

    def __init__(
        self,
        input_ops: Op | Iterable[Op],
        combine: Callable[[list[dict[str, Any]]], dict[str, Any]] | None = None,
        schema: Any = None,
    ) -> None:
        super().__init__(name=EXECUTOR_NAME, input_ops=input_ops)
        self.pipeline_schema = _bound(schema)
        self.pipeline_pack_format: bool | None = None
        self.pipeline_combine: Callable[[list[dict[str, Any]]], dict[str, Any]] | None = combine

    def set_pack_format(self, isTensor: bool = False) -> None:
        """Answer with tensors only (True) or with key/value text only (False).

        Without this call, and if the last Op has not set a form either, a request that came as
        tensors is answered with both, so that clients of either kind find what they read.
        """
        self.pipeline_pack_format = isTensor

    @_hook
    def pack_response_package(self, channeldata: ChannelData) -> pipeline_service_pb2.Response:
        """Turn the last Op's answer, or the error in its place, into a Response.

        In key/value form an answer contains either str values, sent unchanged, or ndarrays and
        lists of str, sent as their `repr`; any other value is a TYPE_ERROR. Tensors may also be
        numbers, bytes and nested lists.
        """
        if channeldata.error is not None:
            return pack_error(channeldata)
        as_text, as_tensors = response_formats(self, channeldata.as_tensors)
        payload = channeldata.payload
        if as_text and not as_tensors and set(map(type, payload.values())) <= _STR:
            return pipeline_service_pb2.Response(key=map(str, payload), value=payload.values())
        return pack(payload, as_text, as_tensors)


# Functions of the library for an Op. They are not methods, and the attributes that only the library
# reads begin with `pipeline_`: an Op of a script may have its own `config` or `connect`.


def _bound(schema: Any) -> BoundSchema | None:
    """Return the checker of a schema; None for none. Its module is imported at the first use."""
    if schema is None:
        return None
    from pipeline.schema.bound import bind

    return bind(schema)


def _as_ops(owner: Op, ops: Op | Iterable[Op] | None, argument: str) -> list[Op]:
    inputs = [ops] if isinstance(ops, Op) else list(ops or [])
    for op in inputs:
        if not isinstance(op, Op):
            raise GraphError(
                f"Op {owner.name!r}: {argument} must be an Op or a list of Ops, "
                f"found {op!r} ({type(op).__name__})."
            )
    return inputs


def configure_op(op: Op, config: OpConfig) -> None:
    """Give `op` its resolved configuration; fill the attributes that scripts read."""
    local = config.local_service_conf
    op.pipeline_config = config
    op.pipeline_ragged |= frozenset(config.allow_ragged_batch)
    op.concurrency = config.concurrency
    op.client_type = config.client_type or local.client_type
    op.model_config = local.model_config
    op.devices = local.devices
    op.thread_num = local.thread_num
    op._fetch_names = list(config.fetch_list or local.fetch_list or []) or None
    op._server_endpoints = config.server_endpoints
    op._batch_size = config.batch_size
    op._retry = config.retry
    op._timeout = -1 if config.timeout_s is None else config.timeout_s
    op._auto_batching_timeout = config.auto_batching_timeout_s


def connect_op(
    op: Op, client: _PredictorClient, feed_names: Iterable[str], fetch_names: Iterable[str]
) -> None:
    """Give `op` its predictor."""
    op.client = client
    op.right_feed_names = list(feed_names)
    op.right_fetch_names = list(fetch_names)
    if op._fetch_names is None:
        op._fetch_names = list(fetch_names)


def runs_process(op: Op) -> bool:
    """Return whether batches go through `process`: with a model, an override, or `with_serving`."""
    return predictor_of(op) is not None or op.with_serving or overrides(op, "process")


def predictor_of(op: Op) -> _PredictorClient | None:
    """Return `client` if it can predict: a script may keep its database client there."""
    return op.client if hasattr(type(op.client), "predict") else None


def overrides(op: Op, method: str) -> bool:
    """Return whether `method` is the user's own and not this library's."""
    function = getattr(getattr(op, method), "__func__", None)
    return not getattr(function, "__module__", "").startswith(__name__)


def runs_on_the_loop(op: Op, method: str) -> bool:
    """Return whether `method` is quick enough for the event loop: this library's methods are."""
    return op.pipeline_is_quick or not overrides(op, method)


def response_formats(op: ResponseOp, as_tensors: bool) -> tuple[bool, bool]:
    """Return whether our own ResponseOp answers in text, and whether in tensors.

    `as_tensors`: whether the request came as tensors.
    """
    if op.pipeline_pack_format is not None:
        return not op.pipeline_pack_format, op.pipeline_pack_format
    if op.pipeline_packs_tensors or op._input_ops[0].pipeline_packs_tensors:
        return False, True
    return True, as_tensors


def _pairs(keys: Sequence[str], values: Sequence[str]) -> dict[str, Any]:
    """Return a long request's pairs; other threads run between its slices."""
    data: dict[str, Any] = {}
    for at in range(0, len(keys), SLICE):
        data.update(zip(keys[at : at + SLICE], values[at : at + SLICE], strict=False))
        breathe()
    return data
