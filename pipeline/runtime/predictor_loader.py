"""PredictorLoader: gives an Op that has a model its predictor."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pipeline.config.schema import OpConfig
from pipeline.errors import ConfigError, InitError
from pipeline.op import Op, connect_op
from pipeline.predictors.base import LocalModel, Predictor, engine_of, load_local_predictor
from pipeline.predictors.remote.base import RemoteModel, connect_remote_predictor

_DEFAULT_CLIENT = "brpc"  # what scripts of the predecessor mean that name endpoints only
_LOCAL = "local_predictor"
_PREDICTOR = ("feed_names", "fetch_names", "predict", "close")


@dataclass(frozen=True, slots=True)
class ModelServiceAddress:
    """An address of those model services of an Op that this server has started.

    `client_config` is the folder of what a client has to know of the model. It is written there
    before the services are ready; None: the Op's own `client_config` says it.
    """

    endpoints: tuple[str, ...] = ()
    client_config: Path | None = None


@dataclass(frozen=True, slots=True)
class PredictorLoader:
    """Sets `op.client`; called where the Op's workers run, maybe in another process.

    Relative paths are looked up in `base_dir` first, then in the working directory. `services` are
    the model services that this server has started, by the Op's name. `load` is for the worker with
    a number. A predictor in `given` replaces an Op's model.
    """

    base_dir: Path
    services: Mapping[str, ModelServiceAddress] = field(default_factory=dict)
    load: Callable[[LocalModel, int], Predictor] = load_local_predictor
    connect: Callable[[RemoteModel], Predictor] = connect_remote_predictor
    given: Mapping[str, Predictor] = field(default_factory=dict)

    def __call__(self, op: Op, worker: int) -> None:
        """Connect `op`; the cards of `devices` are given to the workers in turn.

        Raises InitError: the model cannot be loaded, or is configured in a way that is not
        supported.
        """
        op.pipeline_base_dir = self.base_dir
        predictor = self._predictor(op, worker)
        if predictor is not None:
            connect_op(op, predictor, predictor.feed_names, predictor.fetch_names)

    def runtimes(self, ops: Sequence[Op]) -> list[str]:
        """Return what imports the runtimes of local models, before workers are forked.

        Of models on cards nothing: a process that has opened a card cannot be forked.
        """
        runtimes = []
        for op in ops:
            local = op.pipeline_config.local_service_conf
            if self._is_local(op) and not local.devices.strip():
                with contextlib.suppress(InitError, ConfigError):  # the worker says it
                    runtimes.append(engine_of(local_model(op, self.base_dir)).before_fork)
        return list(dict.fromkeys(filter(None, runtimes)))

    def _is_local(self, op: Op) -> bool:
        config = op.pipeline_config
        local = config.local_service_conf
        is_elsewhere = op.name in self.given or bool(config.server_endpoints)
        has_one = local.model_config is not None and local.client_type == _LOCAL
        return has_one and not is_elsewhere

    def _predictor(self, op: Op, worker: int) -> Predictor | None:
        config = op.pipeline_config
        if op.name in self.given:
            return _complete(self.given[op.name])
        if config.use_encryption_model or config.encryption_key:
            raise InitError(
                f"op.{op.name}.use_encryption_model: encrypted models cannot be run: decrypt the "
                "model and name the plain one, without use_encryption_model and encryption_key"
            )
        if config.server_endpoints:
            address = ModelServiceAddress(config.server_endpoints)
            return _complete(self.connect(self._remote(op, address, config.client_type)))
        local = config.local_service_conf
        if local.model_config is None:
            return None
        if local.client_type != _LOCAL:
            address = self.services.get(op.name, ModelServiceAddress())
            return _complete(self.connect(self._remote(op, address, local.client_type)))
        return _complete(self.load(local_model(op, self.base_dir), worker))

    def _remote(self, op: Op, address: ModelServiceAddress, client_type: str | None) -> RemoteModel:
        config = op.pipeline_config
        conf = config.client_config
        return RemoteModel(
            name=op.name,
            client_type=client_type or _DEFAULT_CLIENT,
            endpoints=address.endpoints,
            client_config=resolve_path(self.base_dir, conf) if conf else address.client_config,
            fetch_list=_fetch_list(config),
            model_name=config.model_name,
            model_version=config.model_version,
            sends_tensors=op.pipeline_packs_tensors is not False,
            input_store=config.input_store,
            batch_size=config.batch_size,
            options=config.client_options,
        )


def _complete(predictor: Predictor) -> Predictor:
    """Return what a plug-in has made; InitError: an Op could not run it."""
    lacks = [name for name in _PREDICTOR if not hasattr(predictor, name)]
    if lacks:
        kind = type(predictor).__name__
        raise InitError(
            f"expected a Predictor, found {kind}, which has no {' and no '.join(lacks)}"
        )
    return predictor


def local_model(op: Op, base_dir: Path) -> LocalModel:
    """Return the model of `op.<name>.local_service_conf`, which has a `model_config`."""
    local = op.pipeline_config.local_service_conf
    assert local.model_config is not None
    return LocalModel(
        model_path=resolve_path(base_dir, local.model_config),
        engine=local.engine,
        fetch_list=_fetch_list(op.pipeline_config),
        thread_num=local.thread_num,
        device_type=local.device_type,
        devices=local.devices,
        options=local.engine_options,
        dynamic_shapes=op.dynamic_shape_info,
    )


def resolve_path(base_dir: Path, path: str) -> Path:
    """Return `path` beside the configuration, if it is there; else from where we run."""
    beside = base_dir / path
    return beside if beside.exists() else Path(path)


def _fetch_list(config: OpConfig) -> tuple[str, ...] | None:
    return config.fetch_list or config.local_service_conf.fetch_list
