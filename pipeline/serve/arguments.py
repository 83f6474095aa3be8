"""The command line of `python -m pipeline.serve`, with Paddle Serving's flags."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.errors import ConfigError
from pipeline.predictors.base import DeviceType, known_engines

MODEL = "model"
"""The name of the Op that has the model."""

_DEFAULT_PORT = 9292
_DEFAULT_THREADS = 4
_MAX_BODY_BYTES = 512 * 2**20
_DEVICES = {"cpu": DeviceType.CPU, "gpu": DeviceType.GPU, "arm": DeviceType.ARM_CPU}

# The predecessor's flags without effect here: name -> why. With a value or without.
_WITHOUT_EFFECT = {
    "workdir": "nothing is written",
    "op_num": "see --thread",
    "runtime_thread_num": "see --thread",
    "op_max_batch": "see --batch_infer_size",
    "gpu_multi_stream": "each worker has a stream of its own",
    "request_cache_size": "answers are not cached",
    "product_name": "there is no authentication",
    "container_id": "there is no authentication",
    "trt_workspace_size": "TensorRT's own default is used",
    "trt_use_static": "TensorRT's own default is used",
    "max_concurrency": "see --thread",
}
_REFUSED = {
    "use_encryption_model": "encrypted models are not supported: decrypt the model first",
    "encryption_rpc_port": "encrypted models are not supported: decrypt the model first",
    "use_lite": "Paddle Lite is not supported",
    "use_xpu": "name it by --device or in --local_service_conf: device_type 4",
    "use_ascend_cl": "name it in --local_service_conf: device_type 5 or 6",
    "use_dist_model": "models that are spread over several processes are not supported",
    "enable_prometheus": "this version has no metrics",
    "op": "operators of one's own are not supported: write a pipeline with an Op",
}


@dataclass(frozen=True, slots=True)
class ServeSettings:
    """The model to serve, and the ports.

    `config` is the content of a config.yml. `fd` is an inherited socket to listen on, instead of
    `host` and `port`; `parent_fd` a socket whose other end is notified when the service is ready,
    and whose end is the end of the service. `dynamic_shapes` is an Op's `dynamic_shape_info`.
    `client_conf` is the folder for the files that clients need. `notes` name arguments that have no
    effect.
    """

    model: Path
    name: str
    host: str
    port: int
    grpc_port: int | None
    fd: int | None
    parent_fd: int | None
    config: Mapping[str, Any]
    dynamic_shapes: dict[str, Any]
    client_conf: Path | None
    notes: Sequence[str] = ()


def read_arguments(arguments: Sequence[str] | None = None) -> ServeSettings:
    """Return the settings that a command line asks for.

    Raises:
        ConfigError: an option is not supported.
        SystemExit: the command line is not valid; usage and reason were written to stderr.
    """
    given = _parser().parse_args(arguments)
    for flag, why in _REFUSED.items():
        if getattr(given, flag) is not None:
            raise ConfigError(f"--{flag}: {why}.")
    if len(given.model) > 1:
        raise ConfigError("--model: several models in a row are not supported; serve each alone.")
    local = _local_service_conf(given)
    shapes = local.pop("dynamic_shape_info", {})
    model = Path(local["model_config"])
    if not model.exists():
        raise ConfigError(f"--model: {model} does not exist (looked from {Path.cwd()}).")
    return ServeSettings(
        model=model,
        name=given.name or (model.resolve().name if model.is_dir() else model.stem),
        host=given.host,
        port=given.port,
        grpc_port=given.grpc_port,
        fd=given.fd,
        parent_fd=given.parent_fd,
        config=_config(given, local, model),
        dynamic_shapes=shapes,
        client_conf=given.write_client_conf,
        notes=[
            f"--{flag} has no effect here: {why}"
            for flag, why in _WITHOUT_EFFECT.items()
            if getattr(given, flag) is not None
        ],
    )


def _local_service_conf(given: argparse.Namespace) -> dict[str, Any]:
    try:
        more = json.loads(given.local_service_conf)
    except ValueError as error:
        raise ConfigError(f"--local_service_conf: this is no JSON: {error}.") from error
    if not isinstance(more, dict):
        raise ConfigError("--local_service_conf: expected a JSON object.")
    cards = ",".join(given.gpu_ids).replace(" ", "")
    local: dict[str, Any] = {
        "devices": cards,
        "device_type": _device_type(given, cards),
        "precision": given.precision,
        "use_calib": given.use_calib,
        # None: the engine decides. False would switch off Paddle's default.
        "use_mkldnn": given.use_mkl or None,
        "ir_optim": given.ir_optim or given.use_trt or given.use_mkl or None,
        "mem_optim": not given.mem_optim_off,
        "min_subgraph_size": given.min_subgraph_size,
        **more,
        "client_type": "local_predictor",
    }
    if given.model:
        local["model_config"] = given.model[0]
    if not isinstance(local.get("model_config"), str):
        raise ConfigError("--model: name the model's folder or file.")
    return local


def _device_type(given: argparse.Namespace, cards: str) -> int:
    if given.use_trt:
        return DeviceType.TENSORRT
    if given.device is None:
        return DeviceType.BY_CARDS
    if given.device == "gpu" and not cards:
        raise ConfigError("--device gpu: name the cards, for example --gpu_ids 0.")
    return _DEVICES[given.device]


def _config(given: argparse.Namespace, local: dict[str, Any], model: Path) -> dict[str, Any]:
    cards = [card for card in str(local["devices"]).split(",") if card.strip()]
    holds_gil = _holds_gil(model, local.get("engine"))
    in_processes = holds_gil or len(cards) > 1
    workers = given.thread or (max(1, len(cards)) if in_processes else _DEFAULT_THREADS)
    if in_processes:
        workers = max(workers, len(cards))
    op: dict[str, Any] = {
        "concurrency": workers,
        "workers": "process" if in_processes else "thread",
        "local_service_conf": local,
    }
    if given.batch_infer_size > 1:
        op |= {"batch_size": given.batch_infer_size, "batching": "adaptive"}
    return {
        "rpc_port": 0,  # not used: this service has its own frontends
        "host": given.host,
        "max_message_bytes": min(given.max_body_size, 2**31 - 1),
        "queue_size": given.queue_size,
        "log": {"level": given.log_level},
        "op": {MODEL: op},
    }


def _holds_gil(model: Path, engine: str | None) -> bool:
    """Return whether the model's engine holds the GIL."""
    engines = known_engines(engine)
    if engine is not None:
        return engine in engines and engines[engine].holds_gil
    files = [model] if model.is_file() else sorted(model.iterdir())
    holders = (kind.holds_gil for kind in engines.values() if any(map(kind.runs, files)))
    return next(holders, False)


def _port(text: str) -> int:
    port = int(text)
    if not 0 <= port <= 65535:
        raise ValueError
    return port


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "python -m pipeline.serve",
        description="Serve one model, of Paddle or ONNX, to clients of Paddle Serving's general "
        "model service: over brpc (baidu_std) and gRPC, both on one port.",
        epilog="A serving_server_conf.prototxt beside the model gives the names that clients use. "
        "The service ends with SIGTERM or SIGINT, after the requests that it has.",
        allow_abbrev=False,
    )
    _add_service(parser)
    _add_engine(parser)
    for flag in (*_WITHOUT_EFFECT, *_REFUSED):
        parser.add_argument(f"--{flag}", nargs="*", help=argparse.SUPPRESS)
    parser.add_argument("--fd", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--parent_fd", type=int, help=argparse.SUPPRESS)
    return parser


def _add_service(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--model", nargs="+", default=[], metavar="DIR", help="folder or file of the model")
    add("--port", type=_port, default=_DEFAULT_PORT, help="0: any free one (default %(default)s)")
    add("--grpc_port", type=_port, help="a second port, for gRPC alone: a little faster")
    add("--host", default="::", help="address to listen on (default: all, IPv6 and IPv4)")
    add("--name", help="for the log (default: the model's)")
    add(
        "--write_client_conf",
        type=Path,
        metavar="DIR",
        help="write DIR/serving_client_conf.prototxt, which clients need, once the model is loaded",
    )
    add(
        "--thread",
        type=int,
        help="requests that the model runs at a time. Threads that share one model for ONNX "
        f"(default {_DEFAULT_THREADS}); processes with a model each for Paddle and for several "
        "cards (default: one a card)",
    )
    add(
        "--batch_infer_size",
        "--batch_size",
        type=int,
        default=1,
        help="requests that the model runs at once, as many as are there (default: one by one)",
    )
    add(
        "--max_body_size",
        type=int,
        default=_MAX_BODY_BYTES,
        help="limit of a message in bytes (default 512 MiB)",
    )
    add("--queue_size", type=int, default=1024, help="requests that may wait (default 1024)")
    add("--log_level", default="INFO", help="least severe level that is logged, to stderr")


def _add_engine(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--gpu_ids", nargs="*", default=[], metavar="N", help="cards: 0,1")
    add("--device", choices=sorted(_DEVICES), help="default: gpu where --gpu_ids names cards")
    add("--precision", default="fp32", help="fp32, fp16, bf16 or int8")
    add("--use_calib", action="store_true", help="calibrate TensorRT's int8")
    add("--use_trt", action="store_true", help="TensorRT")
    add("--use_mkl", action="store_true", help="oneDNN on the CPU (Paddle)")
    add("--ir_optim", action="store_true", help="optimise the graph (Paddle)")
    add("--mem_optim", action="store_true", help="reuse memory (Paddle); on by default")
    add("--mem_optim_off", action="store_true", help="do not")
    add("--min_subgraph_size", type=int, default=3, help="of TensorRT")
    add(
        "--local_service_conf",
        default="{}",
        metavar="JSON",
        help="keys of local_service_conf as in config.yml, for what has no flag",
    )
