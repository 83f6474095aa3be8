"""config.yml as one frozen, checked object: defaults, ranges, units. ms become seconds here."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Collection, Mapping
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from msgspec import Meta, Struct

from pipeline.config.access import AccessConfig, TlsConfig
from pipeline.config.batching import DynamicBatchingConfig
from pipeline.config.fields import (
    Alias,
    Chosen,
    Duration,
    Masked,
    OneOf,
    OptionsOf,
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
from pipeline.config.yaml import KeyPath, Source, dotted
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
        "Callers may register it, and have tensors there; absent: if host is a loopback address.",
    ] = None
    prefix: Annotated[str, "What the keys begin with that may be registered; absent: any."] = ""


class MetricsConfig(Struct, frozen=True, kw_only=True):
    """`metrics`: families of /metrics that are there or not, as Triton's --metrics-config says."""

    counter_latencies: Annotated[bool, "Triton's counters of times, and those of caches."] = True
    histogram_latencies: Annotated[bool, "Triton's histogram of first responses."] = True
    summary_latencies: Annotated[bool, "Triton's summaries of times in the last minute."] = False
    summary_quantiles: Annotated[
        tuple[Annotated[float, Meta(ge=0, le=1)], ...], "Quantiles that these have."
    ] = (0.5, 0.9, 0.95, 0.99, 0.999)
    first_response_buckets_ms: Annotated[
        tuple[Annotated[float, Meta(gt=0)], ...], "Bounds of the histogram of first responses."
    ] = (100.0, 500.0, 2000.0, 5000.0)


class RequestTracesConfig(Struct, frozen=True):
    """`request_traces`: traces of single requests by v2, in files of Triton's form."""

    file: Annotated[str, 'File that they go to; "": none are made.'] = ""
    level: Annotated[
        tuple[Literal["TIMESTAMPS", "TENSORS"], ...], "What of a request is in them; none: off."
    ] = ()
    rate: Annotated[Size, "Every so many-th request is traced; 0: none."] = 1000
    count: Annotated[int, Meta(ge=-1), "Traces that are made; -1: any number."] = -1
    log_frequency: Annotated[
        Size, "Traces in each of the files FILE.0, FILE.1; 0: all are in one."
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
        Literal["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"], "Least severe level that is kept."
    ] = "INFO"
    request_sample: Annotated[Size, "Log every n-th request at INFO; 0: log none."] = 0
    stderr: Annotated[
        Literal["always", "terminal", "never"],
        "Show warnings and errors on stderr: always, never, or where that is a terminal.",
    ] = "always"
    to: Annotated[
        Literal["files", "stdout"],
        "files: PipelineServingLogs/; stdout: no files, and nothing on stderr, for containers.",
    ] = "files"
    format: Annotated[Literal["text", "json"], "Lines as text, or as JSON objects."] = "text"
    max_bytes: Annotated[Size, "A log file of so many bytes is rotated; 0: never."] = 64_000_000
    backup_count: Annotated[Size, "Rotated files that are kept."] = 9


class ErrorsConfig(Struct, frozen=True, kw_only=True):
    """`errors`: what callers are told of errors."""

    details: Annotated[
        Literal["full", "safe"] | None,
        "Of the server's own errors callers read type, text and place, or a sentence with the "
        "data id; absent: safe behind the gateway, else full.",
    ] = None


class TracerConfig(Struct, frozen=True, kw_only=True):
    """`dag.tracer`."""

    interval_s: Annotated[
        float | None, Duration("s"), "Figures go to pipeline.tracer this often, s; <= 0: never."
    ] = None


class DagConfig(Struct, frozen=True, kw_only=True):
    """`dag`: what all Ops have in common."""

    is_thread_op: Annotated[bool, "True: workers are threads; False: processes."] = True
    workers: Annotated[
        str | None, OneOf("workers"), "Workers of the Ops that are slow; absent: as of the others."
    ] = None
    slow_from_s: Annotated[
        Millis, "An Op is slow if its usual_time is at least this, ms; dag.workers is for these."
    ] = 0.005
    ray: Annotated[RayConfig, "The cluster of Ops with workers: ray."] = RayConfig()
    start_method: Annotated[
        Literal["fork", "spawn"],
        "How processes start: fork: as copies of the script; spawn: anew, for CUDA at import.",
    ] = "fork"
    shared_memory_mib: Annotated[
        int,
        Meta(ge=1, le=2**20),
        "Most shared memory that one process fills, MiB; what is beyond goes through sockets.",
    ] = 1024
    trust_workers: Annotated[
        bool, "True: the server opens answers of its processes whatever is in them, functions too."
    ] = False
    retry: Annotated[
        Count, "Attempts for a request that timed out, or was lost; 1: no second one."
    ] = 1
    client_type: Annotated[str, "Read for the predecessor's sake; each Op has its own."] = "brpc"
    use_profile: Annotated[bool, "Write PROFILE lines to stderr, for Analyst."] = False
    profile_per_s: Annotated[
        Size, "Requests a second that have PROFILE lines; of more, a fair sample; 0: all of them."
    ] = 200
    channel_size: Annotated[
        Size, "Requests that wait at an Op before its producers are held back; 0: any."
    ] = 0
    channel_recv_first_arrive: Annotated[
        bool,
        Alias("channel_recv_frist_arrive"),
        "An Op with several inputs starts with the first that arrives.",
    ] = False
    fuse: Annotated[
        Literal["auto", "off"],
        "auto: quick Ops that follow each other run in one go; off: each on its own thread.",
    ] = "auto"
    stream_window: Annotated[
        Count, "Parts of a stream that a request may have under way before its generator waits."
    ] = 16
    max_parts: Annotated[
        Count,
        "Parts of a stream that are kept for who takes all at once:"
        " an Op that gathers, a caller of one answer.",
    ] = 100_000
    first_part_timeout_s: Annotated[
        Millis | None, "Limit until the first part of a stream, ms; <= 0: none."
    ] = None
    part_timeout_s: Annotated[
        Millis | None, "Limit from one part of a stream to the next, ms; <= 0: none."
    ] = None
    tracer: Annotated[TracerConfig, "Statistics at an interval."] = TracerConfig()
    forward_headers: Annotated[
        Pattern, 'Names of headers that the context of a request has, as a pattern; "": none.'
    ] = ""
    enable_prometheus: Annotated[bool, "Serve /metrics on prometheus_port."] = False
    prometheus_port: Annotated[Port, "Port of the metrics; 0: any free one."] = 19393
    prometheus_host: Annotated[str | None, "Address of prometheus_port; absent: host."] = None


class LocalServiceConfig(Struct, frozen=True, kw_only=True):
    """`op.<name>.local_service_conf`: the model that runs here, unless the Op has endpoints."""

    model_config: Annotated[str | None, "Model folder or file; absent: the Op has no model."] = None
    client_type: Annotated[
        Literal["local_predictor", "brpc", "grpc"],
        "local_predictor: the workers run the model; brpc, grpc: a service of its own does.",
    ] = "local_predictor"
    engine: Annotated[
        str | None, OneOf("engines"), "onnx or paddle; absent: by the model's file suffix."
    ] = None
    workdir: Annotated[str, 'Working folder of a local server; "": a generated one.'] = ""
    thread_num: Annotated[Count, "CPU threads of one predictor."] = 2
    device_type: Annotated[
        int,
        Meta(ge=-1, le=6),
        "-1 by devices, 0 CPU, 1 GPU, 2 TensorRT, 3 ARM, 4 XPU, 5 Ascend 310, 6 Ascend 910.",
    ] = -1
    devices: Annotated[Cards, 'Card numbers in quotes, "0,1", workers take turns; "": CPU.'] = ""
    fetch_list: Annotated[Names | None, "Outputs that are fetched; absent: all."] = None
    engine_options: Annotated[Options, OptionsOf("engines", "engine", built_in=True)] = {}


class SequenceConfig(Struct, frozen=True, kw_only=True):
    """`op.<name>.sequence`: requests with one `sequence_id` stay at one worker, in order."""

    strategy: Annotated[
        str | None,
        OneOf("strategies"),
        "direct: each sequence has its place in a worker's batches; oldest: who has waited longest"
        " goes; absent: the Op knows no sequences.",
    ] = None
    max_idle_ms: Annotated[
        Count, "A sequence of which no request comes for so long loses its slot, ms."
    ] = 1000
    max_candidates: Annotated[
        Size, "oldest: sequences that have a slot at a worker; 0: batch_size of them."
    ] = 0
    min_slot_utilization: Annotated[
        float, Meta(ge=0, le=1), "direct: share of a worker's slots that a batch waits for."
    ] = 0.0
    max_queue_delay_ms: Annotated[
        Size, "Longest wait for that share or, with oldest, for a full batch, ms; 0: none."
    ] = 0
    preferred_batch_sizes: Annotated[
        tuple[Count, ...], "oldest: batches of such a size do not wait to grow."
    ] = ()
    state: Annotated[
        tuple[StateConfig, ...], "Arrays that a worker keeps from step to step of a sequence."
    ] = ()
    checkpoint: Annotated[
        bool, "True: the server has the states, too; sequences of a lost worker go on at others."
    ] = False
    controls: Annotated[
        tuple[ControlConfig, ...], "Arrays that say what a request is in its sequence."
    ] = ()
    preserve_ordering: Annotated[
        bool,
        "oldest: accepted, as Triton has it; the answers of a worker leave in order anyway.",
    ] = False


class OpConfig(Struct, frozen=True, kw_only=True):
    """`op.<name>`: one Op. `resolve_op` adds what the Op's constructor and `dag` say."""

    concurrency: Annotated[Count, "Workers, each with one batch at a time."] = 1
    min_workers: Annotated[
        Size | None, "Fewest workers, where their number follows the load; 0: none while idle."
    ] = None
    max_workers: Annotated[
        Count | None, "Most workers, where their number follows the load; absent: concurrency."
    ] = None
    elastic: Annotated[ElasticConfig, "When workers are added and taken away."] = ElasticConfig()
    timeout_s: Annotated[Millis | None, "Limit of one attempt of process(), ms; <= 0: none."] = None
    retry: Annotated[Count, "Attempts of process(); 1: no second one."] = 1
    batch_size: Annotated[Count, "Most requests in a batch."] = 1
    auto_batching_timeout_s: Annotated[
        Millis | None, "Longest wait for a batch to grow, ms; <= 0: take what is ready."
    ] = None
    batching: Annotated[
        str,
        OneOf("schedulers"),
        "full: wait for batch_size requests; adaptive: for what comes meanwhile; dynamic: as"
        " dynamic_batching says; iterative: steps.",
    ] = "full"
    dynamic_batching: Annotated[
        DynamicBatchingConfig, "batching: dynamic, in the words of Triton's section of this name."
    ] = DynamicBatchingConfig()
    allow_ragged_batch: Annotated[
        Names, "Inputs whose shapes may differ in a batch: they are fed flat."
    ] = ()
    batch_input: Annotated[
        tuple[BatchInputConfig, ...], "Arrays that tell of the shapes of an input in a batch."
    ] = ()
    batch_output: Annotated[
        tuple[BatchOutputConfig, ...], "Flat outputs that are cut by the shapes of an input."
    ] = ()
    scheduler_options: Annotated[Options, OptionsOf("schedulers", "batching")] = {}
    sequence: Annotated[SequenceConfig, "Requests that belong together."] = SequenceConfig()
    response_cache: Annotated[
        bool, "True: keep answers in the server's cache; equal requests come to no worker."
    ] = False
    rate_limiter: Annotated[
        tuple[NeedsConfig, ...], "Resources that its workers share with others, see rate_limit."
    ] = ()
    workers: Annotated[
        str | None, OneOf("workers"), "thread, process or ray; absent: as dag says."
    ] = None
    usual_time_s: Annotated[
        Millis, "Time that a batch usually takes, ms, so that dag.workers knows who is slow."
    ] = 0.0
    ray: Annotated[RayOpConfig, "Actors of workers: ray."] = RayOpConfig()
    worker_options: Annotated[Options, OptionsOf("workers", "workers")] = {}
    fuse: Annotated[
        bool, "False: the Op always runs on its own thread, as what is bound to a thread needs."
    ] = True
    channel_recv_first_arrive: Annotated[
        bool | None, "Of several inputs take the first that arrives; absent: as under dag."
    ] = None
    server_endpoints: Annotated[
        Names, "host:port of remote model servers; empty: local_service_conf."
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
        str | None, "The model's name at a triton, kserve or openai server; absent: the Op's."
    ] = None
    model_version: Annotated[
        str, 'The model\'s version there, in quotes; "": the server chooses.'
    ] = ""
    fetch_list: Annotated[
        Names | None, "Outputs that are fetched; absent: as local_service_conf says."
    ] = None
    input_store: Annotated[
        InputStoreConfig, "A store by which large inputs go, with client_type: pipeline_grpc."
    ] = InputStoreConfig()
    use_encryption_model: Annotated[bool, "Encrypted models are refused at the start."] = False
    encryption_key: Annotated[str, Masked(), "Read for the predecessor's sake."] = ""
    local_service_conf: Annotated[LocalServiceConfig, "The Op's own model."] = LocalServiceConfig()


Signal = Literal["traces", "logs", "metrics"]
"""Kinds of data that OpenTelemetry's collectors take."""

Edge = Literal["embedded", "gateway", "auto"]
"""Who takes HTTP and gRPC."""


class ServiceConfig(Struct, frozen=True, kw_only=True):
    """The whole configuration.

    `source` names the file; `warnings` were logged when it was read; `places` says for each name
    under `op` where it stands, and `overrides` which of its keys the environment and `--set` gave.
    """

    ignored_keys: ClassVar[Names] = ("grpc_gateway_port",)

    rpc_port: Annotated[Port, "gRPC port; 0: any free one; absent: http_port + 1."]
    http_port: Annotated[Port | None, "HTTP port; 0: any free one; absent: no HTTP."] = None
    edge: Annotated[
        Edge,
        "Who takes HTTP and gRPC: embedded: the server; gateway: pipeline-gateway; auto: that for "
        "gRPC, if it is there, and the server for HTTP.",
    ] = "embedded"
    http_server: Annotated[
        Literal["embedded", "gateway"] | None,
        "Who takes HTTP, embedded or gateway; absent: as edge says.",
    ] = None
    host: Annotated[
        str, 'Address that is listened on; "::": all, IPv6 and IPv4, for a network that is trusted.'
    ] = LOOPBACK
    rpc_host: Annotated[str | None, "Address of rpc_port; absent: host."] = None
    http_host: Annotated[str | None, "Address of http_port; absent: host."] = None
    admin_port: Annotated[
        Port | None,
        "Port of the page, /metrics and administration, which the others do not know then, with "
        "edge: gateway; absent: they are on the others.",
    ] = None
    admin_host: Annotated[str, "Address of admin_port."] = LOOPBACK
    worker_num: Annotated[
        Count | None, "Most requests worked on at once; absent: the server chooses."
    ] = None
    build_dag_each_worker: Annotated[
        bool, "True: worker_num processes, each with doors, graph and workers of its own."
    ] = False
    timeout_s: Annotated[Millis | None, "Deadline of a request, ms; <= 0: none."] = None
    queue_size: Annotated[Size, "Requests that may wait to be worked on; more are refused."] = 4096
    max_message_bytes: Annotated[Limit, "Largest message, in and out, bytes."] = 256 * 2**20
    max_json_bytes: Annotated[
        Limit, "Largest JSON of a request or answer, and text of an answer's array, bytes."
    ] = Limits().json_bytes
    max_text_elements: Annotated[
        Limit, "Most strings, and elements of BYTES, in one request or answer."
    ] = Limits().text_elements
    max_json_objects: Annotated[
        Limit,
        "Most lists and objects in one request of plain JSON, or to OpenAI's API.",
    ] = Limits().json_objects
    statistics: Annotated[
        bool, "Count what happens: for v2 statistics, /metrics and the page; False: nothing."
    ] = True
    status_page: Annotated[bool, "Show how the server stands at GET /, to whoever asks."] = True
    cache: Annotated[
        Mapping[str, object],
        Chosen("caches"),
        "Where answers are kept of what has response_cache: local or redis, and its options.",
    ] = {}
    response_cache: Annotated[
        bool, "True: keep answers of the whole pipeline; equal requests come to no Op."
    ] = False
    payload_store: Annotated[
        str | None,
        "Where callers may leave large inputs and send references: redis://host:6379/0.",
    ] = None
    rate_limit: Annotated[RateLimitConfig, "Resources that workers share."] = RateLimitConfig()
    filters: Annotated[
        Mapping[str, object],
        Chosen("filters"),
        "Filters around each request, the outermost first: the name of each, and its options.",
    ] = {}
    sinks: Annotated[
        Mapping[str, object],
        Chosen("sinks"),
        "Sinks of what happened, beside our own: the name of each, and its options.",
    ] = {}
    frontends: Annotated[
        Mapping[str, object],
        Chosen("frontends"),
        "Frontends beside gRPC and HTTP: the name of each, and its options.",
    ] = {}
    cors: Annotated[CorsConfig, "Web pages from elsewhere."] = CorsConfig()
    allowed_hosts: Annotated[
        Names, "Names of this server for browsers, beside the machine's own; .a.b: all below a.b."
    ] = ()
    opentelemetry: Annotated[
        bool | tuple[Signal, ...],
        Rule("true (traces), false, or a list of traces, logs and metrics", lambda signals: True),
        "Send traces, or a list of traces, logs, metrics, as the OTEL_* environment says; needs the"
        " extra otel.",
    ] = False
    stop_grace_period_s: Annotated[
        Millis, "Time that a stopping server gives its requests, ms."
    ] = 30.0
    drain_delay_s: Annotated[
        Millis, "Time for which a stopping server says not ready and goes on serving, ms."
    ] = 0.0
    reuse_port: Annotated[
        bool, "True: a second server may listen on the same ports, as the next release does."
    ] = False
    switch_interval_s: Annotated[
        float | None,
        Duration("us"),
        "sys.setswitchinterval, microseconds: less is fairer to I/O; <= 0: leave it alone.",
    ] = 0.001
    log: Annotated[LogConfig, "What is logged, and where to."] = LogConfig()
    errors: Annotated[ErrorsConfig, "What callers are told of errors."] = ErrorsConfig()
    dag: Annotated[DagConfig, "What all Ops have in common."] = DagConfig()
    client_shared_memory: Annotated[
        ClientSharedMemory, "Shared memory of callers on this machine."
    ] = ClientSharedMemory()
    restricted_apis: Annotated[
        RestrictionsConfig, "Parts of the v2 protocol for those who know a header's value."
    ] = RestrictionsConfig()
    access: Annotated[AccessConfig, "Who may do what, with edge: gateway."] = AccessConfig()
    tls: Annotated[TlsConfig, "Certificates of the ports, with edge: gateway."] = TlsConfig()
    metrics: Annotated[MetricsConfig, "Families of /metrics."] = MetricsConfig()
    request_traces: Annotated[
        RequestTracesConfig, "Traces of single requests by v2, in files of Triton's form."
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

    Raises ConfigError with a line for each mistake: file, line, key, expected, found. What is
    merely odd, such as an unknown key, is logged and kept in `warnings`. `yml_dict` is not
    changed. `layers` are laid over it.
    """
    return config_of(*read_layers(ServiceConfig, yml_file, yml_dict, layers))


def config_of(source: Source, overrides: Collection[KeyPath] = ()) -> ServiceConfig:
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


def unheeded_of(config: ServiceConfig, server: ServiceConfig) -> list[str]:
    """Return a warning if a configuration of which only `op` is heeded differs from the server's.

    That ports do is no wonder.
    """
    keys = [
        key
        for key, setting in settings_of(ServiceConfig).items()
        if key not in ("op", "rpc_port", "http_port")
        and getattr(config, setting.field) != getattr(server, setting.field)
    ]
    text = f"{config.source}: {', '.join(keys)}: not heeded, one configuration says it for all"
    return [text] if keys else []


def batch_fill_warnings(config: ServiceConfig, ops: Mapping[str, OpConfig]) -> list[str]:
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
    if rpc and rpc == http and not is_gateway:
        text = f"expected a port other than rpc_port, but with edge: gateway, found {found(http)}"
        reader.problem(("http_port",), text)
    admin = values.get("admin_port")
    if admin and admin in (rpc, http):
        text = f"expected a port other than rpc_port and http_port, found {found(admin)}"
        reader.problem(("admin_port",), text)
    if metrics and metrics in (rpc, http, admin):
        text = f"expected a port other than rpc_port and http_port, found {found(metrics)}"
        reader.problem(("dag", "prometheus_port"), text)


def _names(raw: object, key: str) -> bool:
    """Return whether `key` has a value, be it a wrong one, or no place for one."""
    return raw.get(key) is not None if isinstance(raw, Mapping) else raw is not None
