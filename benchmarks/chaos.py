"""`python -m benchmarks.chaos`: does a service of process workers survive a storm under load?

Workers are killed, stopped, crash and hang, and zygotes are killed. The same seed gives the same
storm. Prints what became of the requests and a verdict; status 1 if a criterion is not met.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from benchmarks.family import Holdings
from benchmarks.process import Service, running
from benchmarks.report import machine, table, write
from benchmarks.services.chaos import OPS, Board, Poison, Recipe, doom_of
from benchmarks.steady import ANSWERED, UNENDED, WRONG, Ending, Steady, explains
from benchmarks.storm import Storm, schedule

_RELIABILITY = Path(__file__).parents[1] / "docs" / "reliability.md"
_BEGIN = "<!-- chaos: written by `python -m benchmarks.chaos --write` -->"

_SLACK_S = 0.25  # beyond the deadline: for the way there and back
_WARM_UP_S = 2.0
_READY_LIMIT_S = 30.0  # after the storm; a crash loop is over 10 s after its last crash
_SETTLING_S = 2.0  # for a service that idles to have given back what it does not need
_LEAST_SUCCESS = 0.999
_MOST_P99 = 1.5  # after the storm, in terms of before
_P99_NOISE_S = 0.005
_MOST_GROWTH_MIB = 16.0
_MOST_REGIONS = 2 * sum(OPS.values())  # more than these would be those of workers long dead
_MIB = 2**20


@dataclass(frozen=True, slots=True)
class Plan:
    """A run: see `main` for the fields that are options, `Recipe` for the others."""

    seconds: float = 300.0
    calm_s: float = 20.0
    seed: int = 1
    per_s: float = 200.0
    kill_every_s: float = 1.0
    every: int = 500
    doomed_every: int = 1000
    retry: int = 3
    timeout_ms: int = 500
    deadline_s: float = 10.0


@dataclass(frozen=True, slots=True)
class Run:
    """The results. `ready_s`: time from the storm to the ready service; None: never ready."""

    plan: Plan
    recipe: Recipe
    before: list[Ending]
    during: list[Ending]
    after: list[Ending]
    held_before: Holdings
    held_after: Holdings
    events: dict[str, int]
    ready_s: float | None
    exit_status: int | None
    left: int


@dataclass(frozen=True, slots=True)
class Finding:
    """A criterion and its result. `is_timing`: a miss may be due to the machine."""

    what: str
    wanted: str
    found: str
    is_met: bool
    is_timing: bool = False


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.chaos", description=__doc__)
    parser.add_argument("--seconds", type=float, default=300.0, help="length of the storm")
    parser.add_argument("--calm", type=float, default=20.0, help="seconds before and after it")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rate", type=float, default=200.0, help="requests a second")
    parser.add_argument("--every", type=int, default=500, help="one attempt of so many crashes")
    parser.add_argument("--write", action="store_true", help=f"into {_RELIABILITY.name}")
    given = parser.parse_args()
    plan = Plan(given.seconds, given.calm, given.seed, given.rate, every=given.every)
    run = survive(plan)
    report = markdown(run)
    print(report)
    if given.write:
        write(report, _RELIABILITY, _BEGIN)
    return 0 if all(finding.is_met for finding in judge(run)) else 1


def survive(plan: Plan) -> Run:
    """Start the service, storm it, stop it."""
    requests = max(1, int(plan.seconds * plan.per_s))
    with TemporaryDirectory(prefix="chaos-") as folder:
        recipe = Recipe(
            seed=plan.seed,
            every=plan.every,
            doomed_every=plan.doomed_every,
            retry=plan.retry,
            timeout_ms=plan.timeout_ms,
            deadline_ms=round(plan.deadline_s * 1000),
            board=str(Path(folder, "board")),
            requests=requests,
        )
        board = Board(recipe.board, requests)
        with running("chaos", msgspec.json.encode(recipe).decode()) as service:
            service.first_answer(lambda: _check_ready(service))
            return asyncio.run(_survive(plan, recipe, board, service))


async def _survive(plan: Plan, recipe: Recipe, board: Board, service: Service) -> Run:
    calm = range(-1, -1 - max(1, int(plan.calm_s * plan.per_s)), -1)
    storm = Storm(service.pid, board)
    clients = Steady(service.grpc_port, plan.seed, plan.per_s, plan.deadline_s)
    async with clients:
        await clients.ask(calm[: int(_WARM_UP_S * plan.per_s)])
        before = await clients.ask(calm)
        held_before = await _settled(service)
        async with asyncio.TaskGroup() as group:
            events = schedule(plan.seed, plan.seconds, plan.kill_every_s)
            group.create_task(storm.rage(events))
            during = group.create_task(clients.ask(range(recipe.requests)))
        ready_s = await _ready_after(service)
        await clients.ask(calm[: int(_WARM_UP_S * plan.per_s)])
        after = await clients.ask(calm)
        held_after = await _settled(service)
    exit_status, left = await asyncio.to_thread(service.end)
    return Run(
        plan,
        recipe,
        before,
        during.result(),
        after,
        held_before,
        held_after,
        _events(storm, board),
        ready_s,
        exit_status,
        left,
    )


async def _settled(service: Service) -> Holdings:
    await asyncio.sleep(_SETTLING_S)
    return service.holdings()


async def _ready_after(service: Service) -> float | None:
    start = time.monotonic()
    while (waited_s := time.monotonic() - start) < _READY_LIMIT_S:
        try:
            await asyncio.to_thread(_check_ready, service)
            return waited_s
        except urllib.error.HTTPError:
            await asyncio.sleep(0.1)
    return None


def _check_ready(service: Service) -> None:
    """Raises OSError while it is not."""
    url = f"http://127.0.0.1:{service.http_port}/health/ready"
    urllib.request.urlopen(url, timeout=_READY_LIMIT_S).close()


def _events(storm: Storm, board: Board) -> dict[str, int]:
    blows = {blow.value: count for blow, count in storm.blows.items()}
    return {
        **blows,
        "calls that crashed (SIGSEGV)": board.strikes(Poison.CRASH),
        "calls that hung": board.strikes(Poison.HANG),
        "blows that found nobody": storm.missed,
    }


# Verdict ------------------------------------------------------------------------------------


def judge(run: Run) -> list[Finding]:
    """Every criterion."""
    return [*_of_requests(run), *_of_times(run), *_of_holdings(run), *_of_end(run)]


def _of_requests(run: Run) -> Iterator[Finding]:
    everything = [*run.before, *run.during, *run.after]
    kinds = Counter(ending.kind for ending in everything)
    late_s = run.plan.deadline_s + _SLACK_S
    late = sum(ending.took_s > late_s for ending in everything)
    doomed, others = _parted(run)
    succeeded = sum(ending.kind == ANSWERED for ending in others)
    share = succeeded / len(others)
    unexplained = sum(
        not explains(ending) for ending in everything if ending.kind not in (ANSWERED, WRONG)
    )
    yield _count("requests without an end", kinds[UNENDED])
    yield _count(f"requests that took more than {late_s:g} s", late)
    yield _count("wrong answers", kinds[WRONG])
    yield _count("errors that do not say why", unexplained)
    yield Finding(
        "answered in the storm, of the requests that are not always poison",
        f">= {_LEAST_SUCCESS:.1%}",
        f"{share:.3%} ({succeeded:,} of {len(others):,})",
        share >= _LEAST_SUCCESS,
    )
    refused = sum(map(explains, doomed))
    result = f"{refused} of {len(doomed)}"
    yield Finding("always poison: ended with an error", "all", result, refused == len(doomed))


def _of_times(run: Run) -> Iterator[Finding]:
    before_s, after_s = _percentile(run.before, 0.99), _percentile(run.after, 0.99)
    limit_s = max(_MOST_P99 * before_s, before_s + _P99_NOISE_S)
    is_met = after_s <= limit_s
    wanted, result = f"<= {limit_s * 1e3:.1f} ms", f"{after_s * 1e3:.1f} ms"
    yield Finding("p99 after the storm", wanted, result, is_met, is_timing=True)
    result = "never" if run.ready_s is None else f"after {run.ready_s:.1f} s"
    yield Finding("ready again", "yes", result, run.ready_s is not None)


def _of_holdings(run: Run) -> Iterator[Finding]:
    before, after = run.held_before, run.held_after
    yield _change("processes", before.processes, after.processes, 0)
    others = [held.descriptors - held.shared_descriptors for held in (before, after)]
    yield _change("descriptors", others[0], others[1], 0)
    # A process maps a region at its first read, and keeps it for later writers.
    shared = before.shared_descriptors, after.shared_descriptors
    yield _change("descriptors of shared memory", *shared, _MOST_REGIONS * after.processes)
    private = before.private_bytes / _MIB, after.private_bytes / _MIB
    yield _change("RSS, MiB", *private, _MOST_GROWTH_MIB)
    memory = before.shared_bytes / _MIB, after.shared_bytes / _MIB
    yield _change("shared memory, MiB", *memory, _MOST_GROWTH_MIB)


def _of_end(run: Run) -> Iterator[Finding]:
    result = "killed" if run.exit_status is None else str(run.exit_status)
    yield Finding("exit status of the server", "0", result, run.exit_status == 0)
    yield _count("processes that are left", run.left)


def _count(criterion: str, number: int) -> Finding:
    return Finding(criterion, "0", str(number), number == 0)


def _change(criterion: str, before: float, after: float, most: float) -> Finding:
    result = f"{before:.0f} -> {after:.0f}"
    wanted = f"at most {most:g} more" if most else "no more"
    return Finding(criterion, wanted, result, after - before <= most)


def _parted(run: Run) -> tuple[list[Ending], list[Ending]]:
    """Return the endings in the storm: of requests that always fail, and of the others."""
    doomed: list[Ending] = []
    others: list[Ending] = []
    for ending in run.during:
        (others if doom_of(run.recipe, ending.number) is None else doomed).append(ending)
    return doomed, others


def _percentile(endings: Sequence[Ending], share: float) -> float:
    """Of the times, in s, of what was answered."""
    times = sorted(ending.took_s for ending in endings if ending.kind == ANSWERED)
    return times[int(share * (len(times) - 1))] if times else float("inf")


# Report -------------------------------------------------------------------------------------


def markdown(run: Run) -> str:
    """The storm, what became of the requests, the verdict."""
    parts = [_setting(run.plan), _events_table(run), _phases(run), _kinds(run), _verdict(run)]
    return "\n\n".join(parts) + "\n"


def _setting(plan: Plan) -> str:
    return (
        f"{machine()}.\n\nSeed {plan.seed}, {plan.per_s:g} requests a second for "
        f"{plan.seconds:g} s of storm and {plan.calm_s:g} s of calm before and after it; "
        f"deadline {plan.deadline_s:g} s, `timeout: {plan.timeout_ms}`, `retry: {plan.retry}`. One "
        f"attempt in {plan.every} crashes and one in {plan.every} hangs; one request in "
        f"{plan.doomed_every} is poison in all attempts."
    )


def _events_table(run: Run) -> str:
    return table(("what happened", "times"), [(event, str(n)) for event, n in run.events.items()])


def _phases(run: Run) -> str:
    phases = {"before": run.before, "storm": run.during, "after": run.after}
    rows = []
    for name, endings in phases.items():
        answered = sum(ending.kind == ANSWERED for ending in endings)
        slowest_s = max(ending.took_s for ending in endings)
        times = [_percentile(endings, 0.5), _percentile(endings, 0.99), slowest_s]
        row = (name, f"{len(endings):,}", f"{answered:,}", *(f"{t * 1e3:.1f}" for t in times))
        rows.append(row)
    return table(("phase", "requests", "answered", "p50 ms", "p99 ms", "slowest ms"), rows)


def _kinds(run: Run) -> str:
    """Return the errors by cause, of always-poison requests and of others, with an example."""
    doomed, others = _parted(run)
    kinds = (Counter(ending.kind for ending in part) for part in (doomed, [*run.before, *others]))
    of_doomed, of_others = kinds
    examples = {ending.kind: ending.text for ending in (*run.during, *run.after)}
    rows = [
        (kind, str(of_doomed[kind]), str(of_others[kind]), examples.get(kind, ""))
        for kind in sorted({*of_doomed, *of_others} - {ANSWERED})
    ]
    return table(("error", "always poison", "others", "such as"), rows)


def _verdict(run: Run) -> str:
    findings = judge(run)
    rows = [
        (finding.what, finding.wanted, finding.found, "met" if finding.is_met else "**missed**")
        for finding in findings
    ]
    is_met = all(finding.is_met for finding in findings)
    verdict = "Survived." if is_met else "**Not survived.**"
    return f"{table(('criterion', 'wanted', 'found', 'verdict'), rows)}\n\n{verdict}"


if __name__ == "__main__":
    sys.exit(main())
