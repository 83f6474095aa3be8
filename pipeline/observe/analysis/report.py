"""The figures of a record and the advice on them, as text for people and as JSON."""

from __future__ import annotations

import dataclasses
import math
import textwrap
from collections.abc import Iterator, Sequence

import orjson

from pipeline.observe.analysis.advice import Advice
from pipeline.observe.analysis.figures import Figures, OpFigures

_WIDTH = 96
_COMMENT = "        # "
_COLUMNS = (
    "Op", "workers", "busy", "requests", "no result", "batch", "queue ms", "p95", "waiting",
    "prep ms", "midp ms", "postp ms", "ms/request", "capacity/s",
)  # fmt: skip
_DERIVED = ("batch_size", "cost_ms", "request_cost_ms", "capacity_per_s")  # of OpFigures


def report_text(name: str, figures: Figures, advice: Advice, damaged: int = 0) -> str:
    """Return what `python -m pipeline analyse` prints of the record `name`.

    `damaged` is the number of unreadable lines.
    """
    return "\n".join([*_lines(name, figures, advice, damaged), ""])


def report_json(figures: Figures, advice: Advice) -> bytes:
    """Return the report as JSON: `figures`, `advice`, and the advised `op:` as `config`.

    An unknown value is null.
    """
    ops = [
        dataclasses.asdict(op) | {name: getattr(op, name) for name in _DERIVED}
        for op in figures.ops
    ]
    as_dict = dataclasses.asdict(figures) | {"per_s": figures.per_s, "ops": ops}
    report = {"figures": as_dict, "advice": advice, "config": advice.as_config()}
    return orjson.dumps(report, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


def _lines(name: str, figures: Figures, advice: Advice, damaged: int) -> Iterator[str]:
    if not figures.requests:
        yield f"{name}: no PROFILE lines that tell of requests (dag.use_profile writes them)"
        return
    yield (
        f"{name}: {figures.requests:,} requests in {figures.seconds:.3f} s, "
        f"{_text(figures.per_s, 1)}/s; {figures.failed:,} failed"
        + f", {figures.given_up:,} given up by their callers" * bool(figures.given_up)
        + f", {figures.refused:,} refused as invalid" * bool(figures.refused)
    )
    if figures.told < figures.requests:
        yield (
            f"a sample of 1 in {figures.requests / figures.told:,.3g}: the record has "
            f"{figures.told:,} requests, and all figures are scaled up (dag.profile_per_s)"
        )
    if damaged:
        yield f"{damaged:,} PROFILE lines could not be read"
    latency = figures.latency
    if not math.isnan(latency.mean):
        yield (
            f"latency {latency.mean:.3f} ms (p50 {latency.p50:.3f}, p95 {latency.p95:.3f}, "
            f"p99 {latency.p99:.3f}): {_text(figures.let_in_ms)} to be let in, "
            f"{_text(figures.unpack_ms)} unpack, {_text(figures.graph_ms)} Ops, "
            f"{_text(figures.pack_ms)} pack"
        )
    yield ""
    yield from _table([_COLUMNS, *map(_row, figures.ops)])
    for streams in figures.streams:
        of = f"of {streams.name}" if streams.name else "to callers"
        several = "s" * (streams.streams > 1)
        yield (
            f"{streams.streams:,} stream{several} {of}, {streams.parts:,} parts: the first after "
            f"{_text(streams.first.mean)} ms (p50 {_text(streams.first.p50)}, "
            f"p95 {_text(streams.first.p95)}), then every {_text(streams.gap_ms)} ms"
        )
    yield ""
    if (path := figures.path) is not None:
        yield (
            f"critical path of {path.share:.0%}: {' > '.join(path.ops)}: {path.cost_ms:.3f} ms "
            f"of work, {path.queue_ms:.3f} ms of waiting"
        )
    yield from _advice_lines(advice)


def _row(op: OpFigures) -> tuple[str, ...]:
    return (
        op.name,
        str(op.workers),
        "-" if math.isnan(op.busy) else f"{op.busy:.0%}",
        f"{op.requests:,}",
        f"{op.failed + op.never_ran:,}",
        _text(op.batch_size, 1),
        *map(_text, (op.queue_ms, op.queue_p95_ms)),
        _text(op.waiting, 1),
        *map(_text, (op.prep_ms, op.midp_ms, op.postp_ms, op.request_cost_ms)),
        _text(op.capacity_per_s, 1),
    )


def _table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield lines with the first column to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for first, *others in rows:
        cells = (cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True))
        yield "  ".join([first.ljust(widths[0]), *cells])


def _advice_lines(advice: Advice) -> Iterator[str]:
    if advice.bottleneck is not None:
        how = "its workers are full" if advice.is_full else "but its workers have time to spare"
        yield f"bottleneck: {advice.bottleneck}: {how}"
    if advice.ops:
        aim = f"advice for {advice.target_per_s:,.1f} requests/s"
        yield f"{aim}, config.yml (expected: {advice.expected_per_s:,.1f}/s):"
        yield "op:"
        config = advice.as_config()
        for op in advice.ops:
            is_plain = op.op.isidentifier() and op.op.isascii()  # else quoted: JSON's are YAML's
            yield f"    {op.op if is_plain else orjson.dumps(op.op).decode()}:"
            for why in op.why:
                yield from textwrap.wrap(
                    why, _WIDTH, initial_indent=_COMMENT, subsequent_indent=_COMMENT
                )
            yield from (f"        {key}: {value}" for key, value in config[op.op].items())
    elif advice.bottleneck is not None:
        yield "no advice: " + (
            "no setting is known to help" if advice.is_full else "callers ask for no more"
        )
    for note in advice.notes:
        yield from textwrap.wrap(f"note: {note}", _WIDTH, subsequent_indent="  ")


def _text(number: float, digits: int = 3) -> str:
    return "-" if math.isnan(number) else f"{number:,.{digits}f}"
