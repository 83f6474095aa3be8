"""`pipeline repository`: serves model repositories, with the flags of Triton's server."""

from __future__ import annotations

import argparse
import logging
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, get_args
from urllib.parse import urlsplit

import msgspec

from pipeline.cli.parsing import command_parser, count
from pipeline.config import fields, registry
from pipeline.config.schema import Edge
from pipeline.config.sections import Api
from pipeline.errors import ConfigError, PipelineError, PortInUseError
from pipeline.observe.logs.setup import LogSwitches
from pipeline.proto.slices import Limits
from pipeline.repository.backends.base import BACKENDS
from pipeline.repository.control import ControlSettings
from pipeline.repository.model_checks import MAX_INSTANCES
from pipeline.repository.server import RepositorySettings, serve

Add = Callable[..., argparse.Action]

_FAILED = 1
_OLDER_TRACES = ("file", "level", "rate", "count", "log-frequency")  # flags before --trace-config
_TRUE = ("1", "true", "on", "yes")
_FALSE = ("0", "false", "off", "no")

_UNUSED = {
    "repoagent-directory": "repository agents are not supported",
    "cache-directory": "caches are Python packages",
    "backend-config": "backends have no own settings",
    "http-thread-count": "HTTP is read on an event loop",
    "grpc-infer-allocation-pool-size": "there is no such pool",
    "grpc-max-response-pool-size": "there is no such pool",
    "model-load-thread-count": "models are loaded as concurrently as they can be",
    "buffer-manager-thread-count": "arrays are gathered by numpy",
    "pinned-memory-pool-byte-size": "there is no such pool",
    "cuda-memory-pool-byte-size": "there is no such pool",
    "cuda-virtual-address-size": "there is no such memory",
    "min-supported-compute-capability": "onnxruntime reports the compute capability it supports",
    "enable-peer-access": "cards are used one by one",
    "model-load-gpu-limit": "cards are used one by one",
    "host-policy": "workers are not bound to processors",
    "allow-gpu-metrics": "there are no metrics of cards",
    "allow-cpu-metrics": "there are no metrics of processors",
    "metrics-interval-ms": "metrics are computed on request",
    "allow-sagemaker": "there is no such port",
    "sagemaker-port": "there is no such port",
    "sagemaker-safe-port-range": "there is no such port",
    "sagemaker-thread-count": "there is no such port",
    "allow-vertex-ai": "there is no such port",
    "vertex-ai-port": "there is no such port",
    "vertex-ai-thread-count": "there is no such port",
    "vertex-ai-default-model": "there is no such port",
    "grpc-infer-response-compression-level": "answers are compressed as each call asks",
    "grpc-keepalive-time": "callers are seen to be gone by their connections",
    "grpc-keepalive-timeout": "callers are seen to be gone by their connections",
    "grpc-keepalive-permit-without-calls": "callers may ask whether the server is there",
    "grpc-http2-max-pings-without-data": "callers may ask whether the server is there",
    "grpc-http2-min-recv-ping-interval-without-data": "callers may ask whether the server is there",
    "grpc-http2-max-ping-strikes": "callers may ask whether the server is there",
    "grpc-max-connection-age": "connections have no age",
    "grpc-max-connection-age-grace": "connections have no age",
}
"""Flags that are read and change nothing, and why."""

_DEPRECATED = {
    "strict-model-config": "disable-auto-complete-config",
    "response-cache-byte-size": "cache-config=local,size=<bytes>",
    "trace-file": "trace-config triton,file=<filepath>",
    "trace-level": "trace-config level=<OFF|TIMESTAMPS|TENSORS>",
    "trace-rate": "trace-config rate=<rate value>",
    "trace-count": "trace-config count=<count value>",
    "trace-log-frequency": "trace-config triton,log-frequency=<log frequency value>",
}
"""Flags that Triton warns of, and what replaces them."""


def repository(arguments: Sequence[str]) -> int:
    """Serve until SIGINT or SIGTERM. Returns the exit code: 0; 1: it could not start.

    Raises SystemExit, as each command: 0 after --help; 2: a flag has an invalid value.
    """
    parser = repository_parser()
    options, others = parser.parse_known_args(arguments)
    if others:
        sys.stderr.write(f"{parser.prog}: unknown: {' '.join(others)}; --help shows all flags\n")
        return _FAILED
    flags = _given(parser, arguments)
    sys.stderr.writelines(f"{line}\n" for line in _warnings(options, flags))
    try:
        serve(settings_of(options))
    except PortInUseError as error:
        sys.stderr.write(f"error: {_collision(options, error)}\n")
        return _FAILED
    except PipelineError as error:
        sys.stderr.write(f"error: {error}\n")
        return _FAILED
    return 0


def _given(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> set[str]:
    """Return the names of the given flags, also of abbreviated ones."""
    absent = argparse.Namespace(**dict.fromkeys(vars(parser.parse_args(arguments))))
    given = vars(parser.parse_args(arguments, absent))
    return {name.replace("_", "-") for name, value in given.items() if value is not None}


def _warnings(options: argparse.Namespace, given: set[str]) -> Iterator[str]:
    """Yield what Triton says of the deprecated flags among those given."""
    for name, successor in _DEPRECATED.items():
        if name in given:
            yield f"Warning: '--{name}' has been deprecated! Please use '--{successor}' instead."
    overridden = options.disable_auto_complete_config and not options.strict_model_config
    if overridden and "strict-model-config" in given:
        yield (
            "Warning: Overriding deprecated '--strict-model-config' from False to True in favor "
            "of '--disable-auto-complete-config'!"
        )


def _collision(options: argparse.Namespace, error: PortInUseError) -> str:
    """Return what Triton says of a port that is another server's."""
    metrics = options.metrics_address or options.http_address
    services = {
        "rpc_port": ("GRPC", options.grpc_address),
        "http_port": ("HTTP", options.http_address),
    }
    name, address = services.get(error.key, ("Metrics", metrics))
    text = f"Unavailable - Socket '{address}:{error.port}' already in use"
    return f"failed to start {name} service: {text}"


def repository_parser() -> argparse.ArgumentParser:
    parser = command_parser(
        "repository",
        "Serve the models of repositories by the v2 protocol, over HTTP and gRPC. The flags are "
        "those of Triton's server, as --name=value or --name value. Read, and without effect here: "
        f"{', '.join(f'--{name}' for name in _UNUSED)}.",
        "pipeline repository --model-repository=models --http-port=8000",
    )
    parser.allow_abbrev = True  # as Triton's
    for name in _UNUSED:
        parser.add_argument(f"--{name}", help=argparse.SUPPRESS)
    for add_flags in (_add_models, _add_ports, _add_observing, _add_limits, _add_logs):
        add_flags(parser.add_argument)
    return parser


def _add_models(add: Add) -> None:
    folders = "folder of models; may be repeated"
    names = "--model-repository", "--model-store"
    add(*names, action="append", required=True, metavar="DIR", help=folders)
    add("--id", default="triton", metavar="NAME", help="name of the server in its metadata")
    modes = "none", "poll", "explicit"
    add("--model-control-mode", type=str.lower, default="none", choices=modes)
    add(
        "--load-model",
        **_SEVERAL,
        metavar="NAME",
        help="loaded at the start in mode explicit; *: all",
    )
    configs = "configs/NAME.pbtxt replaces config.pbtxt in models that have it"
    add("--model-config-name", type=_config_name, metavar="NAME", help=configs)
    retries = "how often a load that fails is tried again"
    add("--model-load-retry-count", type=count, default=0, metavar="COUNT", help=retries)
    add("--repository-poll-secs", type=float, default=15, metavar="S")
    add("--strict-model-config", **_NO)
    add("--disable-auto-complete-config", action="store_true")
    add("--strict-readiness", **_YES)
    add("--exit-on-error", **_YES)
    add("--exit-timeout-secs", type=float, default=30, metavar="S")
    backends = "folder of backends that are Python: BACKEND/model.py; %(default)s"
    add("--backend-directory", type=Path, default=BACKENDS, metavar="DIR", help=backends)
    most = f"maximum of a model's instances, of all its groups; {MAX_INSTANCES}"
    add("--max-instances", type=int, default=MAX_INSTANCES, metavar="COUNT", help=most)
    add("--model-namespacing", **_NO)


def _add_ports(add: Add) -> None:
    for api, port in (("http", 8000), ("grpc", 8001)):
        add(f"--allow-{api}", **_YES)
        add(f"--{api}-address", default="0.0.0.0", metavar="HOST")
        add(f"--{api}-port", type=int, default=port, metavar="PORT", help="0: any free one")
        add(f"--reuse-{api}-port", **_NO)
        add(f"--{api}-header-forward-pattern", default="", metavar="REGEX")
        if api == "grpc":
            threads = "between 2 and 128; without effect here"
            add("--grpc-infer-thread-count", type=_thread_count, metavar="COUNT", help=threads)
        else:
            most = "maximum of a request's JSON"
            add("--http-max-input-size", type=int, default=64 * 2**20, metavar="BYTES", help=most)
    add("--grpc-use-ssl", **_NO)
    callers = "with TLS for gRPC, whose callers need certificates of --grpc-root-cert"
    add("--grpc-use-ssl-mutual", help=callers, **_NO)
    for file in ("server-cert", "server-key", "root-cert"):
        add(f"--grpc-{file}", default="", metavar="FILE", help="PEM; ignored without TLS")
    add("--allow-metrics", **_YES)
    add("--metrics-address", default=None, metavar="HOST")
    add("--metrics-port", type=int, default=8002, metavar="PORT", help="0: any free one")


def _add_observing(add: Add) -> None:
    families = (
        "families of metrics: counter_latencies, histogram_latencies, summary_latencies, "
        "summary_quantiles"
    )
    add("--metrics-config", **_SEVERAL, metavar="SETTING=VALUE", help=families)
    traces = (
        "how requests are traced: level, rate, count; triton,file and "
        "triton,log-frequency; or mode=opentelemetry"
    )
    add("--trace-config", **_SEVERAL, metavar="[MODE,]SETTING=VALUE", help=traces)
    for setting in _OLDER_TRACES:
        add(f"--trace-{setting}", **_SEVERAL, metavar="VALUE")


def _add_limits(add: Add) -> None:
    caches = "the cache of models with response_cache: local,size=BYTES, or redis"
    add("--cache-config", **_SEVERAL, metavar="CACHE,KEY=VALUE", help=caches)
    add("--rate-limit", type=str.lower, default="off", choices=("off", "execution_count"))
    resources = "available amount of a resource that instances need"
    form = "NAME:COUNT[:DEVICE]"
    add("--rate-limit-resource", **_SEVERAL, metavar=form, help=resources)
    add("--response-cache-byte-size", type=int, default=None, metavar="BYTES")
    restricted = (
        "restrict these protocols of v2 (separated by commas) to requests whose header KEY is VALUE"
    )
    for flag in ("--http-restricted-api", "--grpc-restricted-protocol"):
        add(flag, **_SEVERAL, metavar="APIS:KEY=VALUE", help=restricted)
    shared = (
        "callers may pass tensors in shared memory; default: if --http-address is a loopback one"
    )
    add("--allow-client-shm", type=_flag, default=None, metavar="BOOL", help=shared)
    edge = (
        "what serves gRPC and HTTP: auto: the gateway, if installed, gRPC as a child of this "
        "process; embedded: this process both; gateway: the gateway both"
    )
    add("--edge", default="auto", choices=get_args(Edge), help=edge)
    replicas = (
        "processes that serve all models behind one gateway; each has the configured instances of "
        "every model"
    )
    add("--replicas", type=int, default=1, metavar="COUNT", help=replicas)


def _add_logs(add: Add) -> None:
    add("--log-verbose", type=int, default=0, metavar="LEVEL")
    for kind in ("info", "warning", "error"):
        add(f"--log-{kind}", **_YES)
    add("--log-format", default="default", metavar="FORM")
    add("--log-file", default="", metavar="FILE")


def _flag(text: str) -> bool:
    if text.lower() not in (*_TRUE, *_FALSE):
        raise argparse.ArgumentTypeError(f"expected true or false, found {text!r}")
    return text.lower() in _TRUE


def _thread_count(text: str) -> int:
    if text.isdecimal() and 2 <= int(text) <= 128:
        return int(text)
    raise argparse.ArgumentTypeError(
        "invalid argument for --grpc_infer_thread_count. Must be in the range 2 to 128."
    )


def _config_name(text: str) -> str:
    if text and Path(text).name == text:
        return text
    raise argparse.ArgumentTypeError(f"{text!r} is not the name of a file without its .pbtxt")


_NO: dict[str, Any] = {"type": _flag, "default": False, "metavar": "BOOL"}
_YES: dict[str, Any] = {**_NO, "default": True}
_SEVERAL: dict[str, Any] = {"action": "append", "default": []}


def settings_of(options: argparse.Namespace) -> RepositorySettings:
    """Return the settings from the flags. Raises ConfigError: a setting is not available."""
    older = {name: getattr(options, f"trace_{name}".replace("-", "_")) for name in _OLDER_TRACES}
    traces = traces_of(options.trace_config, older)
    os.environ.update(traces.environment)
    server: dict[str, Any] = {
        "http_host": _host(options.http_address),
        "rpc_host": _host(options.grpc_address),
        "http_port": options.http_port if options.allow_http else 0,
        "rpc_port": options.grpc_port if options.allow_grpc else 0,
        "reuse_port": options.reuse_http_port or options.reuse_grpc_port,
        **_doors(options),
        **_sizes(options.http_max_input_size),
        "tls": _tls(options),
    }
    ports: dict[Any, bool] = {"http_port": options.allow_http, "rpc_port": options.allow_grpc}
    server["cache"] = cache_settings(options.cache_config, options.response_cache_byte_size)
    resources = list(map(resource_of, options.rate_limit_resource))
    server["rate_limit"] = {"mode": options.rate_limit, "resources": resources}
    dag: dict[str, Any] = {}
    patterns = {options.http_header_forward_pattern, options.grpc_header_forward_pattern} - {""}
    if patterns:
        dag["forward_headers"] = "|".join(map(_grouped, sorted(patterns)))
    if options.allow_metrics:
        dag |= {
            "enable_prometheus": True,
            "prometheus_port": options.metrics_port,
            "prometheus_host": _metrics_host(options),
        }
    server["restricted_apis"] = {
        "http": _restrictions("--http-restricted-api", options.http_restricted_api),
        "grpc": _restrictions(
            "--grpc-restricted-protocol",
            options.grpc_restricted_protocol,
            "triton-grpc-protocol-",
        ),
    }
    server |= {**traces.keys, "metrics": metrics_of(options.metrics_config)}
    if options.allow_client_shm is not None:
        server["client_shared_memory"] = {"allow": options.allow_client_shm}
    server |= {"dag": dag, "stop_grace_period": round(options.exit_timeout_secs * 1000)}
    closed = tuple(key for key, is_open in ports.items() if not is_open)
    kinds = options.log_info, options.log_warning, options.log_error, options.log_verbose
    return RepositorySettings(
        _control_of(options), server, options.log_verbose, LogSwitches(*kinds), closed
    )


def _doors(options: argparse.Namespace) -> dict[str, Any]:
    """Return who takes requests, and how many processes answer them. Raises ConfigError."""
    if options.replicas <= 1:
        http = "gateway" if options.edge == "gateway" else "embedded"
        return {"edge": options.edge, "http_server": http}
    if options.edge == "embedded":
        raise ConfigError("--replicas: they need the gateway in front of them, see --edge")
    gateway = {"edge": "gateway", "http_server": "gateway"}
    return {**gateway, "build_dag_each_worker": True, "worker_num": options.replicas}


def _tls(options: argparse.Namespace) -> dict[str, Any]:
    """Return the TLS of gRPC.

    Raises ConfigError: a file is not named, or the gateway would not serve gRPC alone.
    """
    is_mutual = options.grpc_use_ssl_mutual
    if not (options.allow_grpc and (options.grpc_use_ssl or is_mutual)):
        return {}
    files = {"certificate": options.grpc_server_cert, "key": options.grpc_server_key}
    if is_mutual:
        files["client_ca"] = options.grpc_root_cert
    if not all(files.values()):
        root = " and --grpc-root-cert" if is_mutual else ""
        needed = f"--grpc-server-cert, --grpc-server-key{root}"
        raise ConfigError(f"--grpc-use-ssl: it needs {needed}")
    has_http = options.allow_http and (options.replicas > 1 or options.edge == "gateway")
    if has_http or options.edge == "embedded":
        others = "--replicas, --edge=embedded or --edge=gateway"
        raise ConfigError(
            f"--grpc-use-ssl: the gateway must serve gRPC alone: start without {others}"
        )
    return {**files, "grpc_only": True}


def _sizes(json_bytes: int) -> dict[str, int]:
    """Return limits of sizes, as in Triton above all for JSON. Raises ConfigError."""
    if json_bytes <= 0:
        raise ConfigError("--http-max-input-size must be greater than 0.")
    most = max(Limits().message_bytes, json_bytes)
    return {"max_json_bytes": json_bytes, "max_message_bytes": most}


def _grouped(pattern: str) -> str:
    """Return a pattern as a part of a longer one; flags at its start, "(?-i)", are those of it."""
    flags = re.match(r"\(\?([a-z-]+)\)", pattern)
    return f"(?{flags[1]}:{pattern[flags.end() :]})" if flags else f"(?:{pattern})"


def _restrictions(flag: str, texts: Sequence[str], prefix: str = "") -> list[dict[str, Any]]:
    """Return restrictions in config.yml's form. Raises ConfigError: one is not valid."""
    kind = flag.rsplit("-", 1)[1]
    restrictions: list[dict[str, Any]] = []
    for restriction in texts:
        apis, colon, secret = restriction.partition(":")
        header, sign, value = secret.partition("=")
        if not (apis and colon and header and sign):
            raise ConfigError(f"{flag}: expected APIS:KEY=VALUE, found {restriction!r}")
        names = [name for name in apis.split(",") if name]
        for at, name in enumerate(names):
            if name not in get_args(Api):
                raise ConfigError(f"{flag}: unknown restricted {kind} '{name}'")
            if name in names[:at] or any(name in other["apis"] for other in restrictions):
                text = f"restricted {kind} '{name}' can not be specified in multiple config groups"
                raise ConfigError(f"{flag}: {text}")
        restrictions.append({"apis": names, "header": prefix + header, "value": value})
    return restrictions


def _control_of(options: argparse.Namespace) -> ControlSettings:
    completes = not (options.strict_model_config or options.disable_auto_complete_config)
    return ControlSettings(
        tuple(dict.fromkeys(Path(path) for path in options.model_repository)),  # each once
        options.model_control_mode,
        tuple(options.load_model),
        options.repository_poll_secs,
        completes,
        options.strict_readiness,
        options.exit_on_error,
        server_name=options.id,
        log_file=options.log_file,
        is_namespaced=options.model_namespacing,
        max_instances=options.max_instances,
        config_name=options.model_config_name or "",
        load_retries=options.model_load_retry_count,
        backend_directory=options.backend_directory,
    )


def _metrics_host(options: argparse.Namespace) -> str:
    if options.metrics_address is not None:
        return _host(options.metrics_address)
    return _host(options.http_address if options.allow_http else "0.0.0.0")


def _host(address: str) -> str:
    return "::" if address == "0.0.0.0" else address


_FORM = "--cache-config option format is '<cache name>,<setting>=<value>'"
_REQUIRED_OF_REDIS = ("host", "port")


def cache_settings(values: Sequence[str], byte_size: int | None) -> dict[str, dict[str, Any]]:
    """Return what `cache` of config.yml says; empty: answers are kept nowhere.

    Args:
        values: each `--cache-config`, "local,size=1048576".
        byte_size: `--response-cache-byte-size`, which Triton had before.

    Raises:
        ConfigError: in Triton's words.
    """
    if byte_size is not None and values:
        raise ConfigError(
            "Incompatible flags --response-cache-byte-size and --cache-config both provided. "
            "Please provide one or the other."
        )
    if byte_size is not None:
        return {"local": {"size": byte_size}} if byte_size > 0 else {}
    caches: dict[str, dict[str, Any]] = {}
    for text in values:
        name, setting, value = _parted(text)
        caches.setdefault(name, {})[setting] = _number(name, setting, value)
    if len(caches) > 1:
        raise ConfigError("found multiple cache configurations, expected only one")
    missing = [name for name in _REQUIRED_OF_REDIS if name not in caches.get("redis", {})]
    if "redis" in caches and missing:
        raise ConfigError(
            "failed to initialize Redis cache: Must at a minimum specify 'host' and 'port', found "
            f"no {' and no '.join(missing)}"
        )
    return caches


def _parted(text: str) -> tuple[str, str, str]:
    name, comma, rest = text.partition(",")
    if not (name and comma):
        raise ConfigError(f"No cache specified. {_FORM}. Got {text}")
    setting, _, value = rest.partition("=")
    if not (setting and value):
        raise ConfigError(f"{_FORM}. Got {text}")
    return name, setting, value


def _number(name: str, setting: str, value: str) -> Any:
    """Return an int where the cache's option is one. Any other port is 0, as in Triton."""
    options = registry.options_of("caches", name)
    known = fields.settings_of(options).get(setting) if options is not None else None
    if known is None or not known.expected.startswith("int"):
        return value
    if _is_number(value):
        return int(value)
    return 0 if setting == "port" else value


def resource_of(text: str) -> dict[str, Any]:
    """Return one of `rate_limit.resources`, of NAME:COUNT or NAME:COUNT:DEVICE. ConfigError."""
    name, *numbers = text.split(":")
    if len(numbers) not in (1, 2) or not all(map(_is_number, numbers)):
        raise ConfigError(
            "--rate-limit-resource option format is '<resource_name>:<count>:<device>' or "
            f"'<resource_name>:<count>'. Got {text}"
        )
    return {"name": name, **dict(zip(("count", "device"), map(int, numbers), strict=False))}


def _is_number(text: str) -> bool:
    return text.isascii() and text.removeprefix("-").isdigit()


# Metrics and traces -----------------------------------------------------------------------------


_LOGGER = logging.getLogger(__name__)

_FAMILIES = ("counter_latencies", "histogram_latencies", "summary_latencies")
_METRICS_FORM = "--metrics-config option format is <setting>=<value>"
_NOTHING: Mapping[str, Sequence[str]] = MappingProxyType({})
_LEVELS = {
    **dict.fromkeys(("false", "off"), ""),
    **dict.fromkeys(("true", "on", "min", "max", "timestamps"), "TIMESTAMPS"),
    "tensors": "TENSORS",
}
_BATCHES = {
    "bsp_max_queue_size": "OTEL_BSP_MAX_QUEUE_SIZE",
    "bsp_schedule_delay": "OTEL_BSP_SCHEDULE_DELAY",
    "bsp_max_export_batch_size": "OTEL_BSP_MAX_EXPORT_BATCH_SIZE",
}
_ENDPOINT = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
_PROTOCOL = "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"
_TRACES_FORM = "--trace-config option format is '<trace mode>,<setting>=<value>'"


def metrics_of(values: Sequence[str]) -> dict[str, Any]:
    """Return what `--metrics-config` asks for, as "summary_latencies=true": keys of config.yml.

    Unknown names are ignored, and wrong quantiles are logged, as in Triton.

    Raises:
        ConfigError: one is not a setting, in Triton's words.
    """
    metrics: dict[str, Any] = {"histogram_latencies": False}
    for text in values:
        setting, _, value = text.partition("=")
        if not (setting and value) or "," in setting:
            raise ConfigError(f"{_METRICS_FORM}. Got {text}")
        if setting in _FAMILIES and value in ("true", "false"):
            metrics[setting] = value == "true"
        elif setting == "summary_quantiles" and (quantiles := _quantiles(value)):
            metrics[setting] = quantiles
    return metrics


def _quantiles(text: str) -> list[float]:
    """Return the quantiles in "0.5:0.05,0.9:0.01"; how exact they are to be is not needed."""
    quantiles = []
    for pair in text.split(","):
        quantile, colon, _ = pair.partition(":")
        try:
            value = float(quantile) if colon else -1.0
        except ValueError:
            value = -1.0
        if 0 <= value <= 1:
            quantiles.append(value)
        else:
            form = "Expected format is <quantile>:<error>"
            _LOGGER.error("--metrics-config: Invalid option: [%s]. %s", pair, form)
    return quantiles


class TraceFlags(msgspec.Struct, frozen=True):
    """Settings of traces that flags say: keys of config.yml, and variables of the environment."""

    keys: Mapping[str, Any]
    environment: Mapping[str, str]


def traces_of(given: Sequence[str], older: Mapping[str, Sequence[str]] = _NOTHING) -> TraceFlags:
    """Return what `--trace-config` asks for, as "level=TIMESTAMPS" or "triton,file=/tmp/trace".

    `older` has the values of the flags before it, such as `--trace-rate`, by their settings.

    Raises:
        ConfigError: one is not a setting, or has no such value, in Triton's words.
    """
    by_mode: dict[str, list[tuple[str, str]]] = {"": [], "triton": [], "opentelemetry": []}
    for text in given:
        mode, pair = _trace_parted(text)
        by_mode[mode].append(pair)
    for_all = {name: values[-1] for name, values in older.items() if values} | dict(by_mode[""])
    levels = [value for name, value in by_mode[""] if name == "level"] or older.get("level", ())
    level, rate = _level(levels), _trace_number("rate", for_all.get("rate", "1000"))
    if _mode(for_all.get("mode", "triton")) == "opentelemetry":
        environment = _otel(by_mode["opentelemetry"], rate)
        return TraceFlags({"opentelemetry": True} if level else {}, environment)
    of_file = for_all | dict(by_mode["triton"])
    settings = {
        "file": of_file.get("file", ""),
        "level": level,
        "rate": rate,
        "count": _trace_number("count", for_all.get("count", "-1")),
        "log_frequency": _trace_number("log-frequency", of_file.get("log-frequency", "0")),
    }
    return TraceFlags({"request_traces": settings}, {})


def _trace_parted(text: str) -> tuple[str, tuple[str, str]]:
    """Return the mode, "" without one, and (setting, value)."""
    mode, comma, rest = text.partition(",")
    setting, _, value = (rest if comma else text).partition("=")
    if (comma and not mode) or not (setting and value):
        raise ConfigError(f"{_TRACES_FORM}. Got {text}")
    return _mode(mode) if comma else "", (setting, value)


def _mode(text: str) -> str:
    if text.lower() not in ("triton", "opentelemetry"):
        options = 'Available options are "triton" and "opentelemetry"'
        raise ConfigError(f"invalid value for trace mode option: {text}. {options}")
    return text.lower()


def _level(words: Sequence[str]) -> list[str]:
    """Return the levels that words name; one that says off says so for all."""
    for word in words:
        if word.lower() not in _LEVELS:
            raise ConfigError(f"invalid value for trace level option: {word}")
    levels = {_LEVELS[word.lower()] for word in words}
    return [] if "" in levels else sorted(levels, reverse=True)


def _trace_number(name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError as error:
        raise ConfigError(
            f'Bad option: "--trace-config {name}": expected a number, got {text!r}'
        ) from error


def _otel(settings: Sequence[tuple[str, str]], rate: int) -> dict[str, str]:
    """Return the OTEL_* variables for settings of OpenTelemetry: others are those of its SDK."""
    share = 1 / rate if rate > 0 else 0.0
    variables = {
        "OTEL_TRACES_SAMPLER": "parentbased_traceidratio",
        "OTEL_TRACES_SAMPLER_ARG": str(share),
    }
    resources = [value for name, value in settings if name == "resource"]
    if resources:
        variables["OTEL_RESOURCE_ATTRIBUTES"] = ",".join(resources)
    given = dict(settings)
    for name, variable in _BATCHES.items():
        if name in given:
            where, text = f"--trace-config opentelemetry,{name}", given[name]
            variables[variable] = text
        else:
            where, text = variable, os.environ.get(variable) or "0"
        if not (text.isascii() and text.isdecimal()):
            raise ConfigError(f'Bad option: "{where}".\nexpected a number, got {text!r}')
    return variables | (_otel_url(given["url"]) if "url" in given else {})


def _otel_url(text: str) -> dict[str, str]:
    """Return the variables of a collector; the path of traces means HTTP, as gRPC has no paths."""
    url = text if "://" in text else f"http://{text}"
    try:
        has_path = "/v1/traces" in urlsplit(url).path
    except ValueError as error:
        where = "--trace-config opentelemetry,url"
        raise ConfigError(f'Bad option: "{where}".\nexpected a URL, got {text!r}') from error
    if not has_path:
        return {_ENDPOINT: text}
    protocol = {} if os.environ.get(_PROTOCOL) else {_PROTOCOL: "http/protobuf"}
    return {_ENDPOINT: url, **protocol}
