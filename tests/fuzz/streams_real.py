"""`python -m fuzz.streams_real`: the cases of `fuzz.streams` on threads and processes.

The clock is real: a seed gives the same case, but not the same order of events. Quick Ops
run fused where they can. Some generators end their process: then any request may fail.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

from streaming import Streams, serving

from fuzz import real
from fuzz.campaign import campaign, parser_of
from fuzz.stream_cases import MAKERS, Case, made_case
from fuzz.streams import Caller, begin, compared, left_over, made_callers

_PATIENCE_S = 30.0


class Tally:
    """Counts open generators of all processes: `tally[0] += 1`, and `-= 1`."""

    def __init__(self) -> None:
        handle, path = tempfile.mkstemp()
        os.close(handle)
        self._handle = os.open(path, os.O_RDWR | os.O_APPEND)
        os.unlink(path)

    def __getitem__(self, _: int) -> int:
        return 0

    def __setitem__(self, _: int, change: int) -> None:
        os.write(self._handle, b"+" if change > 0 else b"-")

    def __getstate__(self) -> dict[str, str]:
        """Return the state for a process of this machine that was not forked from this one."""
        return {"path": f"/proc/{os.getpid()}/fd/{self._handle}"}

    def __setstate__(self, state: dict[str, str]) -> None:
        self._handle = os.open(state["path"], os.O_RDWR | os.O_APPEND)

    def close(self) -> None:
        os.close(self._handle)

    def count(self) -> int:
        text = os.pread(self._handle, 2**20, 0)
        return text.count(b"+") - text.count(b"-")


def real_case(
    rng: random.Random, in_steps: float | None = None
) -> tuple[Case, list[Caller], dict[str, Any]]:
    """Return a case of real workers, its callers and its configuration."""
    case = made_case(rng, is_real=True, in_steps=in_steps)
    case.open = Tally()
    crashes = rng.choice([0.0, 0.0, 0.0, 0.1])
    workers = {op.name: rng.choice(["thread", "process"]) for op in case.ops}
    for op in case.ops:
        op.open = case.open
        if workers[op.name] == "process":
            op.crashes = crashes
            op.holds = rng.choice([0.0, 0.1]) if isinstance(op, MAKERS) else 0.0
    case.is_crashing |= any(op.crashes for op in case.ops)
    callers = made_callers(case, rng)
    settings = {
        op.name: {**case.config["op"][op.name], "workers": workers[op.name]} for op in case.ops
    }
    return case, callers, real.on_ray({**case.config, "op": settings})


def run(seed: int, in_steps: float | None = None) -> list[str]:
    """Run a case; return its findings."""
    case, callers, config = real_case(random.Random(seed), in_steps)
    try:
        return asyncio.run(_run(case, callers, config))
    except Exception as error:
        return [f"{type(error).__name__}: {error}"]
    finally:
        case.open.close()


async def _run(case: Case, callers: list[Caller], config: dict[str, object]) -> list[str]:
    loop = asyncio.get_running_loop()
    wrong: list[str] = []
    loop.set_exception_handler(lambda _, context: wrong.append(f"on the loop: {context}"))
    async with serving(case.last, **config) as streams:
        for caller in callers:
            loop.call_later(caller.begins_s, begin, streams.engine, case, caller, loop)
        await until(lambda: not any(caller.is_open for caller in callers))
        for caller in callers:
            wrong += compared(case, caller)
        wrong += await _settled(case, streams)
    return wrong


async def _settled(case: Case, streams: Streams) -> list[str]:
    """Return the generators and requests that remain after some time."""

    def left() -> list[str]:
        found = left_over(streams.engine)
        if not case.is_crashing and case.open.count():
            found.append(f"{case.open.count()} generators are open")
        return found

    await until(lambda: not left())
    return left()


async def until(is_so: Callable[[], bool]) -> None:
    """Wait until callers have come and `is_so`, or until the patience ends."""
    ends = time.monotonic() + _PATIENCE_S
    await asyncio.sleep(0.25)
    while not is_so() and time.monotonic() < ends:  # noqa: ASYNC110  # there is no event for it
        await asyncio.sleep(0.02)


def main() -> int:
    parser = parser_of("streams_real", __doc__)
    parser.add_argument("--in-steps", type=float, help="share of the makers that are iterative")
    parser.add_argument("--ray", action="store_true", help="actors in the place of processes")
    given = parser.parse_args()
    if given.ray:
        real.start_ray()
    steps = "" if given.in_steps is None else f" --in-steps {given.in_steps}"
    return campaign(parser.prog, given, lambda seed: run(seed, given.in_steps), steps)


if __name__ == "__main__":
    sys.exit(main())
