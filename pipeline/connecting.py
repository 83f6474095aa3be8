"""PredictorLoader: gives an Op that has a model its predictor."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pipeline.errors import InitError
from pipeline.op import Op
from pipeline.predictors.base import LocalModel, Predictor, load_local_predictor


@dataclass(frozen=True, slots=True)
class PredictorLoader:
    """Sets `op.client`; called where the Op's workers run, which may be another process.

    Args:
        base_dir: where a relative `model_config` is looked up first; then where we run.
        load: makes the predictor of a model for the worker with this number.
    """

    base_dir: Path
    load: Callable[[LocalModel, int], Predictor] = load_local_predictor

    def __call__(self, op: Op, worker: int) -> None:
        """Connect `op`; the cards of `devices` are given to the workers in turn.

        Raises:
            InitError: the model cannot be loaded, or is configured in a way that is not supported.
        """
        if op.local_service_handler is not None:
            raise InitError(
                f"Op {op.name!r}: local_service_handler is not supported; describe the model under "
                f"op.{op.name}.local_service_conf."
            )
        if op.config.server_endpoints:
            raise InitError(
                f"op.{op.name}.server_endpoints: this version runs local models only; set "
                "local_service_conf.model_config."
            )
        local = op.config.local_service_conf
        if local.model_config is None:
            return
        predictor = self.load(
            LocalModel(
                model_path=self._resolved(local.model_config),
                fetch_list=op.config.fetch_list or local.fetch_list,
                thread_num=local.thread_num,
                device_type=local.device_type,
                devices=local.devices,
                precision=local.precision,
                engine=local.engine,
            ),
            worker,
        )
        op.connect(predictor, predictor.feed_names, predictor.fetch_names)

    def _resolved(self, path: str) -> Path:
        beside = self.base_dir / path
        return beside if beside.exists() else Path(path)
