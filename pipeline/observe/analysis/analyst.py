"""Analyst: reads a server's PROFILE lines; makes traces, figures and advice from them."""

from __future__ import annotations

import functools
import itertools
import math
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from pipeline.config.yaml import ConfigSource, read_yaml
from pipeline.engine.journal.journal import NO_WORKER
from pipeline.errors import ConfigError
from pipeline.observe.analysis.chrome_trace import Event, events, first_time_ns, trace_json
from pipeline.observe.analysis.figures import Figures, OpFigures, figures_of, op_concurrency
from pipeline.observe.paddle.profile import Profile, read_profile

_REPLICA_WORKERS = 100_000  # more than an Op has: separates the workers of several replicas
_REPLICA_IDS = 2**40


class Analyst:
    """The figures of a profile: lines that a server with `dag.use_profile: true` wrote to stderr.

    Paddle Serving's lines also work; they do not say which requests were in a batch, so arrows,
    waiting and the critical path are missing. The file is read when it is first needed; OSError: it
    cannot be read.

    Args:
        profile_file: path of a text file; other lines are skipped.
    """

    def __init__(self, profile_file: str | os.PathLike[str]) -> None:
        self._path = profile_file

    @functools.cached_property
    def profile(self) -> Profile:
        """The rows of the file."""
        return read_profile(self._path)

    @functools.cached_property
    def figures(self) -> Figures:
        """Return the sums of the rows, over all replicas of a server."""
        profile = self.profile
        spans, requests = profile.spans.copy(), profile.requests.copy()
        for number, pid in enumerate(self._pids):
            of_spans, of_requests = profile.span_pids == pid, profile.request_pids == pid
            spans["worker"][of_spans & (spans["worker"] != NO_WORKER)] += number * _REPLICA_WORKERS
            spans["data_id"][of_spans & (spans["data_id"] >= 0)] += number * _REPLICA_IDS
            requests["data_id"][of_requests] += number * _REPLICA_IDS
        return figures_of(spans, requests, profile.names, profile.sample, profile.streams)

    def get_trace(self) -> list[Event]:
        """Return events for chrome://tracing and ui.perfetto.dev, see `chrome_trace.events`."""
        profile, pids = self.profile, self._pids
        zero_ns = first_time_ns(profile.spans, profile.requests)
        replicas = (
            events(
                profile.spans[profile.span_pids == pid],
                profile.requests[profile.request_pids == pid],
                profile.names,
                number if len(pids) > 1 else None,
                zero_ns,
            )
            for number, pid in enumerate(pids)
        )
        return list(itertools.chain.from_iterable(replicas))

    def save_trace(self, trace_file: str | os.PathLike[str]) -> None:
        """Write the trace. Raises OSError."""
        Path(trace_file).write_bytes(trace_json(self.get_trace()))

    def get_profile(self) -> tuple[float, float, float, OpAnalyst]:
        """Return mean times of a request in ms (through the Ops, unpack, pack), and of each Op.

        A time is NaN if the file does not have it.
        """
        own_figures = self.figures
        return (
            own_figures.graph_ms,
            own_figures.unpack_ms,
            own_figures.pack_ms,
            self.get_op_analyst(),
        )

    def print_profile(self) -> None:
        """Write `get_profile` to standard output."""
        call, prepack, postpack, ops = self.get_profile()
        sys.stdout.write(
            f"graph engine call: {call}\nrpc prepack: {prepack}\nrpc postpack: {postpack}\n"
            f"OP: {ops}\n"
        )

    def get_op_analyst(self) -> OpAnalyst:
        """Return times, rates and concurrency by Op."""
        return OpAnalyst(self.figures.ops)

    @property
    def _pids(self) -> list[int]:
        profile = self.profile
        pids: list[int] = np.union1d(profile.span_pids, profile.request_pids).tolist()
        return pids


class OpAnalyst:
    """Times, rates and concurrency of the Ops of a profile. `Analyst.get_op_analyst` makes it."""

    def __init__(self, ops: Sequence[OpFigures]) -> None:
        self._ops = {op.name: op for op in ops if op.batches}

    def __str__(self) -> str:
        return orjson.dumps(self.times(), option=orjson.OPT_INDENT_2).decode()

    def times(self, op_name: str | None = None) -> Any:
        """Return mean times of a batch in ms: {Op: {"prep": ..., "midp": ..., "postp": ...}}.

        For one Op, the inner dict; KeyError if the profile does not have it.
        """
        steps = {name: _steps(op) for name, op in self._ops.items()}
        return steps if op_name is None else steps[op_name]

    def qps(self, op_name: str | None = None) -> Any:
        """Return the requests/s of one worker for each step alone, in the form of `times`.

        A request's time is its share of its batch. A step without time is infinitely fast.
        """
        rates = {
            name: {
                step: 1e3 * op.batch_size / ms if ms else math.inf
                for step, ms in _steps(op).items()
            }
            for name, op in self._ops.items()
        }
        return rates if op_name is None else rates[op_name]

    def concurrency_analysis(self, op_config_yaml: str | os.PathLike[str]) -> dict[str, float]:
        """Return workers that each Op needs to keep the cards busy: {Op: op_concurrency}.

        The file says which steps run on which cards; the slowest of these steps sets the rate that
        the service can reach:

            bow:
              midp: 0        # card 0
            cnn:
              midp: "1,2"    # shared out over two cards

        Raises:
            ConfigError: the file cannot be read or is not of this form, names an Op or a step that
                the profile does not have, or one card twice: models on one card slow each other
                down, which no profile of the parts foretells.
        """
        source = read_yaml(op_config_yaml)
        cards = dict(_cards(source, self._ops))
        slowest_ms = max(
            _steps(self._ops[name])[step] / self._ops[name].batch_size / count
            for (name, step), count in cards.items()
        )
        if not slowest_ms:
            raise ConfigError(
                f"{source.name}: expected a step that takes time in this profile, "
                "but each one takes 0"
            )
        return {
            name: round(op_concurrency(op.request_cost_ms, 1 / slowest_ms), 3)
            for name, op in self._ops.items()
        }


def _steps(op: OpFigures) -> dict[str, float]:
    return {"prep": op.prep_ms, "midp": op.midp_ms, "postp": op.postp_ms}


def _cards(
    source: ConfigSource, ops: Mapping[str, OpFigures]
) -> Iterator[tuple[tuple[str, str], int]]:
    """Yield ((Op, step), how many cards it has). Raises ConfigError."""
    taken: dict[int, str] = {}
    if not isinstance(source.data, Mapping) or not source.data:
        raise ConfigError(f"{source.name}: expected Ops with the cards of their steps")
    for name, steps in source.data.items():
        if name not in ops:
            raise ConfigError(f"{source.place((name,))}: the profile has {', '.join(ops)}")
        if not isinstance(steps, Mapping) or not steps:
            raise ConfigError(f"{source.place((name,))}: expected steps with cards, as midp: 0")
        for step, value in steps.items():
            place = source.place((name, step))
            if step not in ("prep", "midp", "postp"):
                raise ConfigError(f"{place}: a step is prep, midp or postp")
            cards = _card_numbers(place, value)
            for card in cards:
                if card in taken:
                    raise ConfigError(f"{place}: card {card} has {taken[card]} already")
                taken[card] = f"{name}.{step}"
            yield (name, step), len(cards)


def _card_numbers(place: str, value: object) -> list[int]:
    """Read 0, "0,1" or [0, 1]."""
    items = value.split(",") if isinstance(value, str) else value
    if not isinstance(items, list):
        items = [items]
    texts = [str(item).strip() for item in items if not isinstance(item, bool)]
    if not items or len(texts) < len(items) or not all(text.isdecimal() for text in texts):
        raise ConfigError(f'{place}: expected a card or several, as 0 or "0,1", found {value!r}')
    return [int(text) for text in texts]
