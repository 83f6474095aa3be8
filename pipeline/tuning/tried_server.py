"""Trials: a server of its own for each, a child process, with a load of recorded requests."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import numpy as np

from pipeline.engine.journal.journal import NO_WORKER, Outcome
from pipeline.errors import PipelineError
from pipeline.observe.analysis.analyst import Analyst
from pipeline.observe.tables import batches
from pipeline.system.processes import Family, family_of
from pipeline.tuning.load import LoadFigures, LoadRequest, replay
from pipeline.tuning.settings import OpMeasurement, OpSettings, Settings, Trial

CHILD = "pipeline.cli.trial_main"
_READY = re.compile(rb"is ready: .*HTTP on port (\d+)")
_POLL_S = 0.02
_STOP_S = 10.0
_LAST_WORDS = 600  # characters


OpValues = dict[str, int | float]
"""Values of an Op's settings, by their keys in config.yml."""


class TriedOp(msgspec.Struct, frozen=True):
    """An Op as its script and config.yml have it; `held` says why its settings are not changed.

    `said` are those of its settings that its constructor has, which wins over config.yml.
    """

    name: str
    concurrency: int
    batch_size: int
    delay_ms: float
    in_processes: bool
    takes_batches: bool
    held: str = ""
    said: tuple[str, ...] = ()


class TriedService(msgspec.Struct, frozen=True):
    """A service as a script makes it; `config` is the path of its config.yml, "" without one."""

    config: str
    ops: tuple[TriedOp, ...]


class Changes(msgspec.Struct, frozen=True):
    """The child's task: to describe the service, or run it with other values below `op:`."""

    describes: bool = False
    ops: dict[str, OpValues] = {}


class TrialError(PipelineError):
    """A script cannot be run, or makes no server."""


@dataclass(frozen=True, slots=True)
class Script:
    """A script that runs a server, and its arguments, as `python -m pipeline run` takes them."""

    arguments: tuple[str, ...]

    def describe(self) -> TriedService:
        """Return the service that the script would run. Raises TrialError."""
        with TemporaryDirectory(prefix="pipeline-trial-") as folder:
            done = subprocess.run(
                _command(Changes(describes=True), self),
                env=_variables(folder),
                capture_output=True,
                check=False,
            )
        try:
            return msgspec.json.decode(done.stdout.splitlines()[-1], type=TriedService)
        except (IndexError, msgspec.MsgspecError):
            output = done.stderr.decode("utf-8", "replace")[-_LAST_WORDS:].strip()
            raise TrialError(f"{self.arguments[0]}: {output or 'it runs no server'}") from None


def timed(settings: Settings, measure: Callable[[Settings], Trial]) -> Trial:
    """Return what `measure` finds of some settings, or its problem, and how long it took."""
    begin = time.monotonic()
    try:
        measured = measure(settings)
    except (OSError, TrialError) as error:
        measured = Trial(settings, problem=str(error) or type(error).__name__)
    return replace(measured, took_s=time.monotonic() - begin)


def trial_of(
    settings: Settings,
    load: LoadFigures,
    before: Family,
    after: Family,
    ops: Callable[[], Mapping[str, OpMeasurement]],
) -> Trial:
    """Return what a load found between two looks at a server; `ops` is asked if all is well."""
    if load.failed or not load.times_s:
        reason = f"{load.failed} of {len(load.times_s)} failed: {load.error}"
        return Trial(settings, problem=reason if load.failed else "nothing was answered")
    return Trial(
        settings,
        per_s=load.per_s,
        p50_ms=load.percentile_ms(50),
        p99_ms=load.percentile_ms(99),
        memory_mb=after.memory_mb,
        cpu=(after.cpu_s - before.cpu_s) / load.seconds,
        ops=ops(),
        worker_mb=after.each_mb,
    )


@dataclass(frozen=True, slots=True)
class Bench:
    """All that is the same in each trial. Times in s."""

    script: Script
    names: tuple[str, ...]  # of the Ops, in the order of the settings
    requests: Sequence[LoadRequest]
    clients: int
    warm_up_s: float = 0.5
    seconds: float = 2.0
    start_s: float = 120.0

    def trial(self, settings: Settings) -> Trial:
        """Run the service with these settings under the load; return what it did."""
        return timed(settings, self._measured)

    def _measured(self, settings: Settings) -> Trial:
        ops = {name: keys_of(op) for name, op in zip(self.names, settings, strict=True)}
        with running(_command(Changes(ops=ops), self.script), self.start_s) as (
            child,
            port,
            output,
        ):
            asyncio.run(replay(port, self.requests, self.clients, self.warm_up_s))
            begins_at, before = output.stat().st_size, family_of(child.pid)
            load = asyncio.run(replay(port, self.requests, self.clients, self.seconds))
            after = family_of(child.pid)
            stop(child)
            return trial_of(settings, load, before, after, lambda: _ops_of(output, begins_at))


@contextlib.contextmanager
def running(
    command: Sequence[str], start_s: float
) -> Iterator[tuple[subprocess.Popen[bytes], int, Path]]:
    """Start a server; yield it, its HTTP port and the file that it writes to; stop it."""
    with TemporaryDirectory(prefix="pipeline-trial-") as folder:
        output = Path(folder, "output")
        with output.open("wb") as file:
            child = subprocess.Popen(
                command, env=_variables(folder), stdin=subprocess.DEVNULL, stdout=file, stderr=file
            )
        try:
            yield child, port_of(child, output, start_s), output
        finally:
            stop(child)


def port_of(child: subprocess.Popen[bytes], output: Path, start_s: float) -> int:
    """Return the HTTP port that a server says it is ready on. Raises TrialError: it is not."""
    give_up = time.monotonic() + start_s
    while (match := _READY.search(output.read_bytes())) is None:
        if child.poll() is not None or time.monotonic() > give_up:
            words = output.read_bytes().decode("utf-8", "replace")[-_LAST_WORDS:].strip()
            ended = f"the server ended with {child.returncode}"
            late = f"the server was not ready in {start_s:g} s"
            raise TrialError(f"{late if child.poll() is None else ended}: {words}")
        time.sleep(_POLL_S)
    return int(match[1])


def keys_of(settings: OpSettings) -> OpValues:
    """Return an Op's settings as keys of config.yml have them."""
    return {
        "concurrency": settings.concurrency,
        "batch_size": settings.batch_size,
        "auto_batching_timeout": int(settings.delay_ms) or -1,
    }


def _command(changes: Changes, script: Script) -> list[str]:
    return [sys.executable, "-m", CHILD, msgspec.json.encode(changes).decode(), *script.arguments]


def _variables(folder: str) -> dict[str, str]:
    return os.environ | {"SERVING_LOG_PATH": folder, "PYTHONUNBUFFERED": "1"}


def stop(child: subprocess.Popen[bytes]) -> None:
    """End a server, at once if it does not end by itself."""
    child.terminate()
    try:
        child.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


def _ops_of(output: Path, begins_at: int) -> dict[str, OpMeasurement]:
    """Return what each Op did, from the PROFILE lines behind `begins_at`."""
    lines = output.with_name("profile")
    lines.write_bytes(output.read_bytes()[begins_at:])
    analyst = Analyst(lines)
    profile = analyst.profile
    ops = {}
    for figures in analyst.figures.ops:
        of_op = profile.spans["op"] == profile.names.index(figures.name)
        ran = of_op & (profile.spans["worker"] != NO_WORKER)
        spans, weights = profile.spans[ran], profile.sample.spans[ran]
        if not spans.size:
            continue
        first, sizes = batches(spans)
        is_well = np.minimum.reduceat(spans["outcome"], first) <= Outcome.OK
        took_ms = (spans["end_ns"] - spans["start_ns"])[first] / 1e6
        points = []
        for size in np.unique(sizes[is_well]).tolist():
            those = is_well & (sizes == size)
            count = float(weights[first][those].sum())
            points.append((float(size), float(np.median(took_ms[those])), count))
        ops[figures.name] = OpMeasurement(
            figures.visits, figures.busy * figures.workers, tuple(points)
        )
    return ops
