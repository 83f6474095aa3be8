"""The backend `identity`: each output is the input with the same number, for tests of clients."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from pipeline.engine.graph import Graph, build_graph
from pipeline.errors import ConfigError
from pipeline.op import Op, RequestOp, ResponseOp
from pipeline.proto.inference_v2_pb2 import DataType, ModelConfig
from pipeline.proto.v2.raw import DATATYPES
from pipeline.repository.backends.base import Backend, ModelSource
from pipeline.repository.backends.ragged import Reshaping, ragged_inputs, reshaping_of

_ANY = -1
_DELAY, _CREATION_DELAY = "execute_delay_ms", "creation_delay_sec"


class IdentityOp(Op):
    """Answers with its inputs, after `execute_delay_ms` (a parameter of the model)."""

    def __init__(self, source: ModelSource) -> None:
        super().__init__(source.name, RequestOp())
        config = source.config
        self.outputs: dict[str, str] = {  # by input
            tensor.name: output.name
            for tensor, output in zip(config.input, config.output, strict=True)
        }
        self.reshaping: Reshaping = reshaping_of(config)
        self.pipeline_ragged: frozenset[str] = ragged_inputs(config)
        has_sequences = config.HasField("sequence_batching")
        self.pipeline_merges: bool = has_sequences or not self.pipeline_ragged
        self.batches: bool = config.max_batch_size > 0
        self.optional: dict[str, tuple[str, list[int]]] = {  # defaults of missing inputs
            tensor.name: (
                DataType.Name(tensor.data_type).removeprefix("TYPE_"),
                list(tensor.reshape.shape if tensor.HasField("reshape") else tensor.dims),
            )
            for tensor in config.input
            if tensor.optional
        }
        self.delay_s: float = _number(config, _DELAY) / 1e3
        self.creation_delay_s: float = _number(config, _CREATION_DELAY)

    def init_op(self) -> None:
        """Wait as long as the parameter `creation_delay_sec` says."""
        time.sleep(self.creation_delay_s)

    def process(self, feed_batch: Any, typical_logid: int = 0) -> Any:
        """Return the inputs under the outputs' names."""
        if self.delay_s:
            time.sleep(self.delay_s)
        answers = [self._answer(feed) for feed in feed_batch]
        return answers[0] if self.pipeline_merges else answers

    def _answer(self, feed: Mapping[str, Any]) -> Mapping[str, Any]:
        fed = self.reshaping.fed(feed)
        rows = [next(map(len, fed.values()), 1)] if self.batches else []
        return self.reshaping.answered(
            {
                output: fed[name] if name in fed else _zeros(rows, *self.optional[name])
                for name, output in self.outputs.items()
                if name in fed or name in self.optional
            }
        )


class IdentityBackend(Backend):
    """Backend of models whose outputs are their inputs."""

    workers = "thread"

    def graph(self, source: ModelSource) -> Graph:
        """Return the graph. Raises ConfigError: the numbers of inputs and outputs differ."""
        config = source.config
        if len(config.input) != len(config.output):
            raise ConfigError(
                f"model '{config.name}': there are {len(config.input)} inputs and "
                f"{len(config.output)} outputs; identity answers each input by one output"
            )
        return build_graph(ResponseOp(IdentityOp(source)))


def _zeros(rows: list[int], datatype: str, dims: list[int]) -> np.ndarray[Any, Any]:
    """Return the default of a missing optional input; free dimensions have size one."""
    shape = [*rows, *(1 if dim == _ANY else dim for dim in dims)]
    return (
        np.full(shape, b"", object)
        if datatype == "STRING"
        else np.zeros(shape, DATATYPES[datatype])
    )


def _number(config: ModelConfig, parameter: str) -> float:
    text = config.parameters[parameter].string_value if parameter in config.parameters else "0"
    try:
        return float(text)
    except ValueError:
        raise ConfigError(
            f"model '{config.name}': parameters: {parameter}: expected a number, found {text!r}"
        ) from None


IDENTITY = IdentityBackend()
"""The backend itself."""
