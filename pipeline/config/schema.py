"""config.yml as one frozen, checked object: defaults, ranges, units. ms become seconds here."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Collection, Mapping
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from msgspec import Meta, Struct, structs

from pipeline.config.access import AccessConfig, TlsConfig
from pipeline.config.batching import DynamicBatchingConfig
from pipeline.config.fields import (
    Alias,
    Duration,
    Masked,
    OneOf,
    OptionsOf,
    RegistryChoices,
    Rule,
    found,
    settings_of,
)
from pipeline.config.layers import NO_LAYERS, Layers, read_layers
from pipeline.config.reader import Reader
from pipeline.config.registry import did_you_mean
from pipeline.config.sections import (
    LOOPBACK,
    BatchInputConfig,
    BatchOutputConfig,
    CorsConfig,
    ElasticConfig,
    InputStoreConfig,
    NeedsConfig,
    RateLimitConfig,
    RayConfig,
    RayOpConfig,
    RestrictionsConfig,
    default_host,
    fault_of_cors,
)
from pipeline.config.sequences import ControlConfig, StateConfig
from pipeline.config.yaml import ConfigSource, KeyPath, dotted
from pipeline.errors import ConfigError
from pipeline.proto.slices import Limits

REQUEST_OP = "@DAGExecutor"
"""The name of the RequestOp, which may stand under `op:` though no graph lists it."""

Count = Annotated[int, Meta(ge=1)]
Size = Annotated[int, Meta(ge=0)]
Limit = Annotated[int, Meta(ge=1, le=2**31 - 1)]
Port = Annotated[
    int,
    Rule(
        "int 1024..65535, or 0 for any free port",
        lambda port: port == 0 or 1024 <= port <= 65535,
    ),
]
Cards = Annotated[
    str,
    Rule(
        'card numbers in quotes, such as "0" or "0,1"',
        lambda text: not text or all(card.strip().isdecimal() for card in text.split(",")),
    ),
]
Millis = Annotated[float, Duration("ms")]
Pattern = Annotated[str, Rule("a regular expression", lambda text: _is_pattern(text))]
Names = tuple[str, ...]
Section = TypeVar("Section", bound=Struct)
Options = Mapping[str, object]
"""Arguments of the Struct of an implementation's options, by its fields."""


class ClientSharedMemory(Struct, frozen=True, kw_only=True):
    """`client_shared_memory`: memory of callers on this machine, for tensors of v2."""

    allow: Annotated[
        bool | None,
        "Clients may register shared memory and keep tensors there; absent: True if host is a "
        "loopback address.",
    ] = None
    prefix: Annotated[str, 'Required prefix of the keys that clients register; "": none.'] = ""


class MetricsConfig(Struct, frozen=True, kw_only=True):
    """`metrics`: families of /metrics that are there or not, as Triton's --metrics-config says."""

    counter_latencies: Annotated[bool, "Triton's counters of durations, and those of caches."] = (
        True
    )
    histogram_latencies: Annotated[
        bool, "Triton's histogram of the time to the first response."
    ] = True
    summary_latencies: Annotated[bool, "Triton's summaries of durations in the last minute."] = (
        False
    )
    summary_quantiles: Annotated[
        tuple[Annotated[float, Meta(ge=0, le=1)], ...], "Quantiles of the summaries."
    ] = (0.5, 0.9, 0.95, 0.99, 0.999)
    first_response_buckets_ms: Annotated[
        tuple[Annotated[float, Meta(gt=0)], ...], "Upper bounds of the histogram's buckets, ms."
    ] = (100.0, 500.0, 2000.0, 5000.0)


class RequestTracesConfig(Struct, frozen=True):
    """`request_traces`: traces of single requests by v2, in files of Triton's form."""

    file: Annotated[str, 'File for the traces; "": no traces.'] = ""
    level: Annotated[
        tuple[Literal["TIMESTAMPS", "TENSORS"], ...],
        "What a trace contains: TIMESTAMPS, TENSORS or both; empty: tracing is off.",
    ] = ()
    rate: Annotated[Size, "Trace one of this many requests; 0: none."] = 1000
    count: Annotated[int, Meta(ge=-1), "Maximum number of traces; -1: any number."] = -1
    log_frequency: Annotated[
        Size,
        "Number of traces in each of the files FILE.0, FILE.1 and so on; 0: all in one file.",
    ] = 0

    @property
    def fault(self) -> str:
        """Reason why nothing is traced, in Triton's words; "" if something is."""
        if not self.level:
            return "tracing is disabled"
        if self.rate == 0:
            return "sample rate must be non-zero"
        return "" if self.file else "trace file name is not given"


class LogConfig(Struct, frozen=True, kw_only=True):
    """`log`: what is logged, and where to."""

    level: Annotated[
        Literal["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"], "Lowest level that is logged."
    ] = "INFO"
    request_sample: Annotated[Size, "Log every n-th request at INFO; 0: none."] = 0
    stderr: Annotated[
        Literal["always", "terminal", "never"],
        "Copy warnings and errors to stderr: always, never, or only to a terminal.",
    ] = "always"
    to: Annotated[
        Literal["files", "stdout"],
        "files: the folder PipelineServingLogs/; stdout: stdout alone, for containers.",
    ] = "files"
    format: Annotated[
        Literal["text", "json"], "Format of a line: text, or json: one object per line."
    ] = "text"
    max_bytes: Annotated[Size, "Rotate a log file at this size, bytes; 0: never."] = 64_000_000
    backup_count: Annotated[Size, "Number of rotated files that are kept."] = 9


class ErrorsConfig(Struct, frozen=True, kw_only=True):
    """`errors`: the errors that clients get."""

    details: Annotated[
        Literal["full", "safe"] | None,
        "How much of the server's own errors callers see: full: type, text and place; safe: one "
        "sentence with the data id; absent: safe with the gateway, otherwise full.",
    ] = None


class TracerConfig(Struct, frozen=True, kw_only=True):
    """`dag.tracer`."""

    interval_s: Annotated[
        float | None,
        Duration("s"),
        "Interval between summaries in the log pipeline.tracer, s; <= 0: off.",
    ] = None


class DagConfig(Struct, frozen=True, kw_only=True):
    """`dag`: what all Ops have in common."""

    is_thread_op: Annotated[bool, "True: workers are threads; False: workers are processes."] = True
    workers: Annotated[
        str | None, OneOf("workers"), "Worker kind for slow Ops; absent: the same as for all Ops."
    ] = None
    slow_from_s: Annotated[
        Millis, "An Op whose usual_time is at least this is slow and gets dag.workers, ms."
    ] = 0.005
    ray: Annotated[RayConfig, "Ray cluster for Ops with workers: ray."] = RayConfig()
    start_method: Annotated[
        Literal["fork", "spawn"],
        "How processes start: fork: as copies of the script; spawn: from scratch, for scripts "
        "that use CUDA at import.",
    ] = "fork"
    shared_memory_mib: Annotated[
        int,
        Meta(ge=1, le=2**20),
        "Maximum shared memory of one process, MiB, and never more than the machine's memory; data "
        "without room is refused. Unused memory is only address space.",
    ] = 65536
    trust_workers: Annotated[
        bool, "True: the server unpickles any answer of its worker processes, functions included."
    ] = False
    retry: Annotated[
        Count, "Attempts for a request whose Op timed out or whose data was lost; 1: no retry."
    ] = 1
    client_type: Annotated[
        str, "Accepted for compatibility, without effect; each Op has its own."
    ] = "brpc"
    use_profile: Annotated[bool, "Write PROFILE lines to stderr, for Analyst."] = False
    profile_per_s: Annotated[
        Size,
        "Maximum number of requests per second with PROFILE lines; of more, a fair sample; 0: all.",
    ] = 200
    channel_size: Annotated[
        Size, "Number of requests waiting at an Op at which the Ops before it pause; 0: no limit."
    ] = 0
    channel_recv_first_arrive: Annotated[
        bool,
        Alias("channel_recv_frist_arrive"),
        "An Op with several inputs starts when the first one arrives.",
    ] = False
    fuse: Annotated[
        Literal["auto", "off"],
        "auto: consecutive fast Ops share one thread; off: each Op has its own threads.",
    ] = "auto"
    stream_window: Annotated[
        Count, "Number of unread stream parts per request at which its generator pauses."
    ] = 16
    max_parts: Annotated[
        Count,
        "Maximum number of stream parts that are collected for an Op, or a caller, that needs the "
        "whole stream.",
    ] = 100_000
    first_part_timeout_s: Annotated[
        Millis | None, "Timeout for the first part of a stream, ms; <= 0: none."
    ] = None
    part_timeout_s: Annotated[
        Millis | None, "Timeout between two parts of a stream, ms; <= 0: none."
    ] = None
    tracer: Annotated[TracerConfig, "Periodic summaries."] = TracerConfig()
    forward_headers: Annotated[
        Pattern,
        'Regular expression for names of headers that Ops and filters can read; "": none.',
    ] = ""
    enable_prometheus: Annotated[bool, "Serve /metrics on prometheus_port."] = False
    prometheus_port: Annotated[Port, "Port for /metrics; 0: any free port."] = 19393
    prometheus_host: Annotated[str | None, "Address for prometheus_port; absent: host."] = None


class LocalServiceConfig(Struct, frozen=True, kw_only=True):
    """`op.<name>.local_service_conf`: the model that runs here, unless the Op has endpoints."""

    model_config: Annotated[str | None, "Model folder or file; absent: the Op has no model."] = None
    client_type: Annotated[
        Literal["local_predictor", "brpc", "grpc"],
        "local_predictor: the workers run the model; brpc or grpc: a separate service runs it.",
    ] = "local_predictor"
    engine: Annotated[
        str | None,
        OneOf("engines"),
        "Engine that runs the model: onnx, paddle or openvino; absent: by the file's suffix.",
    ] = None
    workdir: Annotated[str, 'Working folder of a separate service; "": a generated one.'] = ""
    thread_num: Annotated[Count, "CPU threads of one predictor."] = 2
    device_type: Annotated[
        int,
        Meta(ge=-1, le=6),
        "-1: CPU or GPU, by devices; 0 CPU, 1 GPU, 2 TensorRT, 3 ARM, 4 XPU, 5 Ascend 310, 6 "
        "Ascend 910.",
    ] = -1
    devices: Annotated[
        Cards, 'GPU numbers in quotes, such as "0,1"; workers take them in turn; "": CPU.'
    ] = ""
    fetch_list: Annotated[Names | None, "Outputs that are fetched; absent: all."] = None
    engine_options: Annotated[Options, OptionsOf("engines", "engine", built_in=True)] = {}


class SequenceConfig(Struct, frozen=True, kw_only=True):
    """`op.<name>.sequence`: requests with one `sequence_id` stay at one worker, in order."""

    strategy: Annotated[
        str | None,
        OneOf("strategies"),
        "direct: each sequence has a fixed slot in a worker's batches; oldest: the request that "
        "has waited longest goes first; absent: no sequences.",
    ] = None
    max_idle_ms: Annotated[
        Count, "A sequence without a request for this time loses its slot, ms."
    ] = 1000
    max_candidates: Annotated[
        Size, "oldest: maximum number of sequences per worker; 0: batch_size."
    ] = 0
    min_slot_utilization: Annotated[
        float,
        Meta(ge=0, le=1),
        "direct: share of a worker's slots that must be filled before a batch runs.",
    ] = 0.0
    max_queue_delay_ms: Annotated[
        Size, "Maximum wait for that share or, with oldest, for a full batch, ms; 0: none."
    ] = 0
    preferred_batch_sizes: Annotated[
        tuple[Count, ...], "oldest: a batch of one of these sizes runs at once."
    ] = ()
    state: Annotated[
        tuple[StateConfig, ...], "Arrays that a worker keeps between the steps of a sequence."
    ] = ()
    checkpoint: Annotated[
        bool,
        "True: the server also keeps the states, so that sequences of a lost worker continue on "
        "another one.",
    ] = False
    controls: Annotated[
        tuple[ControlConfig, ...],
        "Input arrays that tell the model where a request is in its sequence.",
    ] = ()
    preserve_ordering: Annotated[
        bool,
        "oldest: accepted for compatibility with Triton; answers of a worker are always in order.",
    ] = False


class OpConfig(Struct, frozen=True, kw_only=True):
    """`op.<name>`: one Op. `resolve_op` adds what the Op's constructor and `dag` say."""

    concurrency: Annotated[Count, "Number of workers, each of which runs one batch at a time."] = 1
    min_workers: Annotated[
        Size | None,
        "Minimum number of workers, if their number follows the load; 0: none while idle.",
    ] = None
    max_workers: Annotated[
        Count | None,
        "Maximum number of workers, if their number follows the load; absent: concurrency.",
    ] = None
    elastic: Annotated[ElasticConfig, "When workers are added and removed."] = ElasticConfig()
    timeout_s: Annotated[Millis | None, "Timeout of one call of process(), ms; <= 0: none."] = None
    retry: Annotated[Count, "Attempts for a call of process(); 1: no retry."] = 1
    batch_size: Annotated[Count, "Maximum number of requests in a batch."] = 1
    auto_batching_timeout_s: Annotated[
        Millis | None, "Maximum wait for a batch to fill, ms; <= 0: take what is ready."
    ] = None
    batching: Annotated[
        str,
        OneOf("schedulers"),
        "When a batch runs: full: with batch_size requests; adaptive: with what arrived during "
        "the last batch; dynamic: by dynamic_batching; iterative: step by step.",
    ] = "full"
    dynamic_batching: Annotated[
        DynamicBatchingConfig, "Settings of batching: dynamic, with the names of Triton's section."
    ] = DynamicBatchingConfig()
    allow_ragged_batch: Annotated[
        Names, "Inputs whose shapes may differ within a batch; process() gets them flat."
    ] = ()
    batch_input: Annotated[
        tuple[BatchInputConfig, ...],
        "Additional input arrays that describe the shapes of an input in a batch.",
    ] = ()
    batch_output: Annotated[
        tuple[BatchOutputConfig, ...], "Flat outputs that are split by the shapes of an input."
    ] = ()
    scheduler_options: Annotated[Options, OptionsOf("schedulers", "batching")] = {}
    sequence: Annotated[SequenceConfig, "Sequences: requests that belong together."] = (
        SequenceConfig()
    )
    response_cache: Annotated[
        bool, "True: cache the Op's answers; a request with equal inputs reaches no worker."
    ] = False
    rate_limiter: Annotated[
        tuple[NeedsConfig, ...], "Resources that its workers share with other Ops, see rate_limit."
    ] = ()
    workers: Annotated[
        str | None, OneOf("workers"), "Worker kind: thread, process or ray; absent: as in dag."
    ] = None
    usual_time_s: Annotated[
        Millis, "Usual duration of a batch, ms, by which dag.workers finds slow Ops."
    ] = 0.0
    ray: Annotated[RayOpConfig, "Actors of workers: ray."] = RayOpConfig()
    worker_options: Annotated[Options, OptionsOf("workers", "workers")] = {}
    fuse: Annotated[
        bool, "False: the Op always runs on its own thread, for code that is bound to a thread."
    ] = True
    channel_recv_first_arrive: Annotated[
        bool | None, "With several inputs, start when the first one arrives; absent: as in dag."
    ] = None
    server_endpoints: Annotated[
        Names, "host:port of remote model servers; empty: use local_service_conf."
    ] = ()
    client_type: Annotated[
        str | None,
        OneOf("clients", also=("local_predictor",)),
        "Protocol of server_endpoints: brpc, grpc, pipeline_grpc, triton, kserve or openai.",
    ] = None
    client_options: Annotated[Options, OptionsOf("clients", "client_type")] = {}
    client_config: Annotated[str | None, "Client prototxt of the remote model, or its folder."] = (
        None
    )
    model_name: Annotated[
        str | None, "Name of the model at a triton, kserve or openai server; absent: the Op's name."
    ] = None
    model_version: Annotated[
        str, 'Version of the model at that server, in quotes; "": the server chooses.'
    ] = ""
    fetch_list: Annotated[
        Names | None, "Outputs that are fetched; absent: as in local_service_conf."
    ] = None
    input_store: Annotated[
        InputStoreConfig, "Store for large inputs, with client_type: pipeline_grpc."
    ] = InputStoreConfig()
    use_encryption_model: Annotated[bool, "Not supported: True is an error at the start."] = False
    encryption_key: Annotated[str, Masked(), "Accepted for compatibility, without effect."] = ""
    local_service_conf: Annotated[LocalServiceConfig, "The Op's own model."] = LocalServiceConfig()


Signal = Literal["traces", "logs", "metrics"]
"""Kinds of data that OpenTelemetry's collectors take."""

Edge = Literal["embedded", "gateway", "auto"]
"""The process that listens for HTTP and gRPC."""


class ServiceConfig(Struct, frozen=True, kw_only=True):
    """The whole configuration.

    `source` names the file; `warnings` were logged when it was read; `places` says for each name
    under `op` where it stands, and `overrides` which of its keys the environment and `--set` gave.
    """

    ignored_keys: ClassVar[Names] = ("grpc_gateway_port",)

    rpc_port: Annotated[Port, "Port for gRPC; 0: any free port; absent: http_port + 1."]
    http_port: Annotated[Port | None, "Port for HTTP; 0: any free port; absent: no HTTP."] = None
    edge: Annotated[
        Edge,
        "Where HTTP and gRPC are served: embedded: the server itself; gateway: the Go gateway; "
        "auto: the gateway for gRPC if it is installed, the server for HTTP.",
    ] = "embedded"
    http_server: Annotated[
        Literal["embedded", "gateway"] | None,
        "Where HTTP is served: embedded or gateway; absent: as edge.",
    ] = None
    host: Annotated[
        str, 'Address to listen on; "::": all addresses, IPv4 and IPv6, for a trusted network.'
    ] = LOOPBACK
    rpc_host: Annotated[str | None, "Address for rpc_port; absent: host."] = None
    http_host: Annotated[str | None, "Address for http_port; absent: host."] = None
    admin_port: Annotated[
        Port | None,
        "Separate port for the status page, /metrics and administration, with edge: gateway; "
        "absent: the other ports serve them.",
    ] = None
    admin_host: Annotated[str, "Address for admin_port."] = LOOPBACK
    worker_num: Annotated[
        Count | None,
        "Maximum number of requests in the graph at once; with build_dag_each_worker, number of "
        "server processes; absent: the server chooses.",
    ] = None
    build_dag_each_worker: Annotated[
        bool,
        "True: run worker_num server processes, each with its own frontends, graph and workers.",
    ] = False
    timeout_s: Annotated[Millis | None, "Deadline of a request, ms; <= 0: none."] = None
    queue_size: Annotated[
        Size, "Maximum number of requests that wait to enter the graph; more are refused."
    ] = 4096
    max_message_bytes: Annotated[Limit, "Maximum size of a message, in and out, bytes."] = (
        256 * 2**20
    )
    max_json_bytes: Annotated[
        Limit,
        "Maximum size of the JSON of a request or answer, and of an array sent as text, bytes.",
    ] = Limits().json_bytes
    max_text_elements: Annotated[
        Limit, "Maximum number of strings and BYTES elements in one request or answer."
    ] = Limits().text_elements
    max_json_objects: Annotated[
        Limit,
        "Maximum number of lists and objects in one request of plain JSON or of OpenAI's API.",
    ] = Limits().json_objects
    statistics: Annotated[
        bool,
        "Collect statistics for the v2 protocol, /metrics and the status page; False: collect "
        "nothing.",
    ] = True
    status_page: Annotated[bool, "Serve the status page at GET / to every caller."] = True
    cache: Annotated[
        Mapping[str, object],
        RegistryChoices("caches"),
        "Cache for the answers of Ops and pipelines with response_cache: local or redis, with its "
        "options.",
    ] = {}
    response_cache: Annotated[
        bool,
        "True: cache answers of the whole pipeline; a request with equal inputs reaches no Op.",
    ] = False
    payload_store: Annotated[
        str | None,
        "Redis server where clients may leave large inputs and send references: redis://host:6379/0.",
    ] = None
    rate_limit: Annotated[RateLimitConfig, "Resources that workers share."] = RateLimitConfig()
    filters: Annotated[
        Mapping[str, object],
        RegistryChoices("filters"),
        "Filters around each request, the outermost first: the name of each, with its options.",
    ] = {}
    sinks: Annotated[
        Mapping[str, object],
        RegistryChoices("sinks"),
        "Additional sinks for what happened to requests: the name of each, with its options.",
    ] = {}
    frontends: Annotated[
        Mapping[str, object],
        RegistryChoices("frontends"),
        "Frontends in addition to gRPC and HTTP: the name of each, with its options.",
    ] = {}
    cors: Annotated[CorsConfig, "Access for web pages of other origins."] = CorsConfig()
    allowed_hosts: Annotated[
        Names,
        "Host names that browsers may use for this server, in addition to the machine's own; "
        ".a.b: all names below a.b.",
    ] = ()
    opentelemetry: Annotated[
        bool | tuple[Signal, ...],
        Rule("true (traces), false, or a list of traces, logs and metrics", lambda signals: True),
        "Export traces, or a list of traces, logs and metrics, configured by the OTEL_* "
        "environment variables; needs the extra otel.",
    ] = False
    stop_grace_period_s: Annotated[
        Millis, "Time that a stopping server gives to running requests, ms."
    ] = 30.0
    drain_delay_s: Annotated[
        Millis, 'Time for which a stopping server reports "not ready" and still serves, ms.'
    ] = 0.0
    reuse_port: Annotated[
        bool, "True: a second server, such as the next release, may listen on the same ports."
    ] = False
    switch_interval_s: Annotated[
        float | None,
        Duration("us"),
        "Python's thread switch interval, microseconds: a smaller one favours I/O; <= 0: leave it "
        "unchanged.",
    ] = 0.001
    log: Annotated[LogConfig, "Log settings: content and destination."] = LogConfig()
    errors: Annotated[ErrorsConfig, "Errors as clients see them."] = ErrorsConfig()
    dag: Annotated[DagConfig, "Settings for all Ops."] = DagConfig()
    client_shared_memory: Annotated[
        ClientSharedMemory, "Shared memory of clients on this machine."
    ] = ClientSharedMemory()
    restricted_apis: Annotated[
        RestrictionsConfig, "Parts of the v2 protocol that need a secret header."
    ] = RestrictionsConfig()
    access: Annotated[AccessConfig, "Access rules, with edge: gateway."] = AccessConfig()
    tls: Annotated[TlsConfig, "Certificates of the ports, with edge: gateway."] = TlsConfig()
    metrics: Annotated[MetricsConfig, "Metric families in /metrics."] = MetricsConfig()
    request_traces: Annotated[
        RequestTracesConfig,
        "Traces of single requests by the v2 protocol, in files of Triton's format.",
    ] = RequestTracesConfig()
    op: Annotated[Mapping[str, OpConfig], "One mapping for each Op, by its name."] = {}

    source: str = "yml_dict"
    warnings: Names = ()
    places: Mapping[str, str] = {}
    overrides: Mapping[str, Names] = {}

    @property
    def limits(self) -> Limits:
        """Return the limits of what is costly per byte."""
        return Limits(
            self.max_json_bytes,
            self.max_text_elements,
            self.max_message_bytes,
            self.max_json_objects,
        )

    @property
    def replicas(self) -> int:
        """Return the number of replicas, processes with graphs of their own; 0: this one serves."""
        return (self.worker_num or 1) if self.build_dag_each_worker else 0

    @property
    def signals(self) -> frozenset[Signal]:
        """Return what is sent to OpenTelemetry's collectors."""
        chosen = self.opentelemetry
        if isinstance(chosen, bool):
            return _TRACES if chosen else frozenset()
        return frozenset(chosen)

    @property
    def sends_traces(self) -> bool:
        """Return whether requests have traces."""
        return "traces" in self.signals

    @property
    def hides_errors(self) -> bool:
        """Return whether callers read only a sentence about an error of the server's own."""
        if self.errors.details is None:
            return "gateway" in (self.edge, self.http_server)
        return self.errors.details == "safe"

    @property
    def notes_requests(self) -> bool:
        """Return whether logs say which request they are about: where programs read them."""
        return self.log.format == "json" or "logs" in self.signals

    @property
    def max_active(self) -> int | None:
        """Return the most requests that one graph works on at once; None: it chooses."""
        return None if self.build_dag_each_worker else self.worker_num


_TRACES: frozenset[Signal] = frozenset({"traces"})


def load_config(
    yml_file: str | os.PathLike[str] | None = None,
    yml_dict: Mapping[str, Any] | None = None,
    layers: Layers = NO_LAYERS,
) -> ServiceConfig:
    """Read and check a configuration, from a YAML file or from a dict of the same form.

    Raises ConfigError with a line for each mistake: file, line, key, expected, found. Less serious
    problems, such as an unknown key, are logged and kept in `warnings`. `yml_dict` is not changed.
    `layers` override it.
    """
    return config_of(*read_layers(ServiceConfig, yml_file, yml_dict, layers))


def config_of(source: ConfigSource, overrides: Collection[KeyPath] = ()) -> ServiceConfig:
    """Check what `read_layers` returns, as `load_config` does."""
    reader = Reader(source, ServiceConfig)
    values = reader.fields(ServiceConfig, source.data, ())
    _settle_ports(values, source.data, reader)
    values.setdefault("host", default_host())
    if len(values.get("cache", ())) > 1:
        reader.problem(("cache",), f"expected one cache, found {' and '.join(values['cache'])}")
    for warning in reader.warnings:  # before any error: a misspelt key may be its cause
        logging.getLogger(__name__).warning("%s", warning)
    if reader.problems:
        raise ConfigError("\n".join(reader.problems))
    return ServiceConfig(
        **values,
        source=source.name,
        warnings=tuple(reader.warnings),
        places={name: source.place(("op", name)) for name in values.get("op", ())},
        overrides=_of_ops(overrides),
    )


def _of_ops(paths: Collection[KeyPath]) -> dict[str, Names]:
    """Return keys of Ops by the Op's name: `concurrency` of `op.bow.concurrency`."""
    keys: dict[str, Names] = {}
    for path in paths:
        if path[0] == "op" and len(path) > 2:
            name = str(path[1])
            keys[name] = (*keys.get(name, ()), dotted(path[2:]))
    return keys


def unknown_ops(config: ServiceConfig, op_names: Collection[str]) -> list[str]:
    """Return a warning for each name under `op:` that no Op of the graph has."""
    unknown = (name for name in config.op if name not in op_names and name != REQUEST_OP)
    places = {name: config.places.get(name, f"{config.source}: op.{name}") for name in unknown}
    return [
        f"{place}: no Op of the graph has this name, ignored{did_you_mean(name, op_names)}"
        for name, place in places.items()
    ]


_DAG_OF_SERVER = (
    *("ray", "start_method", "forward_headers", "max_parts", "shared_memory_mib"),
    *("enable_prometheus", "prometheus_port", "prometheus_host"),
)
"""Keys of `dag` that one configuration sets for all pipelines of a server."""


def dag_of_pipeline(config: ServiceConfig, server: ServiceConfig) -> DagConfig:
    """Return the `dag` of a pipeline that is served with others, by its own configuration."""
    return structs.replace(config.dag, **{key: getattr(server.dag, key) for key in _DAG_OF_SERVER})


def unheeded_of(config: ServiceConfig, server: ServiceConfig) -> list[str]:
    """Return a warning if a configuration differs from the server's in more than `op` and `dag`.

    Its ports may differ.
    """
    keys = [
        key
        for key, setting in settings_of(ServiceConfig).items()
        if key not in ("op", "dag", "rpc_port", "http_port")
        and getattr(config, setting.field) != getattr(server, setting.field)
    ]
    keys += [
        f"dag.{key}"
        for key in _DAG_OF_SERVER
        if getattr(config.dag, key) != getattr(server.dag, key)
    ]
    text = f"{config.source}: {', '.join(keys)}: not heeded, one configuration says it for all"
    return [text] if keys else []


def batch_warnings(config: ServiceConfig, ops: Mapping[str, OpConfig]) -> list[str]:
    """Return a warning for each Op whose batch needs more requests than are admitted at once."""
    limit = config.max_active
    if limit is None:
        return []
    return [
        f"{config.source}: worker_num: {limit} requests at once never fill a batch of Op "
        f"{name!r} with batch_size {op.batch_size}; raise worker_num or lower batch_size"
        for name, op in ops.items()
        if op.batch_size > limit
    ]


def op_warnings(config: ServiceConfig, ops: Mapping[str, OpConfig]) -> list[str]:
    """Return a warning for each Op of a graph whose settings cannot have the wanted effect."""
    return batch_warnings(config, ops) + [
        f"{config.source}: op.{name}.client_type: {op.client_type} has no effect without "
        "server_endpoints: give them, or leave client_type out"
        for name, op in ops.items()
        if op.client_type is not None and not _has_model(op)
    ]


def _has_model(op: OpConfig) -> bool:
    is_local = op.local_service_conf.model_config is not None or op.client_type == "local_predictor"
    return is_local or bool(op.server_endpoints)


def _is_pattern(text: str) -> bool:
    try:
        re.compile(text)
    except re.error:
        return False
    return True


def _settle_ports(values: dict[str, Any], raw: object, reader: Reader) -> None:
    """Derive `rpc_port` where it is absent; report ports that are missing or used twice."""
    rpc, http = values.get("rpc_port"), values.get("http_port")
    if not (_names(raw, "rpc_port") or _names(raw, "http_port")):
        reader.problem((), "no port to listen on: set rpc_port, http_port or both")
    elif values.get("http_server") == "gateway" and not _names(raw, "http_port"):
        text = "the gateway listens on http_port, which is absent: set it, or leave out http_server"
        reader.problem(("http_server",), text)
    if rpc is None and http is not None:
        if http == 65535:
            reader.problem(("http_port",), "65535 leaves no http_port + 1 for gRPC: set rpc_port")
        values["rpc_port"] = rpc = http + 1 if http else 0  # 0: both are any free one
    dag = values.get("dag", DagConfig())
    metrics = dag.prometheus_port if dag.enable_prometheus else None
    if fault := fault_of_cors(values.get("cors", CorsConfig())):
        reader.problem(("cors",), fault)
    is_gateway = values.get("edge") == "gateway" and values.get("http_server") != "embedded"
    hosts = values.get("rpc_host"), values.get("http_host")
    if rpc and rpc == http and not (is_gateway or _are_apart(*hosts)):
        text = f"expected a port other than rpc_port, but with edge: gateway, found {found(http)}"
        reader.problem(("http_port",), text)
    admin = values.get("admin_port")
    if admin and admin in (rpc, http):
        text = f"expected a port other than rpc_port and http_port, found {found(admin)}"
        reader.problem(("admin_port",), text)
    ports = [*zip((rpc, http), hosts, strict=True), (admin, values.get("admin_host", LOOPBACK))]
    if metrics and any(
        port == metrics and not _are_apart(host, dag.prometheus_host) for port, host in ports
    ):
        text = f"expected a port other than rpc_port and http_port, found {found(metrics)}"
        reader.problem(("dag", "prometheus_port"), text)


def _are_apart(*hosts: str | None) -> bool:
    """Return whether these are different addresses of this machine."""
    return len({*hosts}) > 1 and {*hosts}.isdisjoint((None, "", "0.0.0.0", "::"))


def _names(raw: object, key: str) -> bool:
    """Return whether `key` has a value (even a wrong one) or cannot have one."""
    return raw.get(key) is not None if isinstance(raw, Mapping) else raw is not None
