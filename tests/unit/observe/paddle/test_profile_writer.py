"""The sink that writes PROFILE lines, and that a sample of them tells what all of them tell."""

from __future__ import annotations

import asyncio
import io
import logging
import os
import threading
import time

import numpy as np
import pytest
from doubles import Engine, chain, run_virtual
from fake_service import FakeOp, play, request, requests_of, turn, turns_of

from pipeline.engine.journal.journal import PART, PIPELINE, REQUEST, SPAN, Outcome, PartKind, Rows
from pipeline.observe.analysis.advice import advise
from pipeline.observe.analysis.figures import Figures, figures_of
from pipeline.observe.analysis.report import report_text
from pipeline.observe.paddle.profile import Profile, ProfileWriter, parse_profile

NO_TURNS = np.array([], SPAN)
NO_REQUESTS = np.array([], REQUEST)


def test_the_sink_writes_rows_in_order():
    stream = io.StringIO()
    writer = ProfileWriter(["bow"], stream=stream)
    writer.start()
    writer.notify(turns_of(turn(batch=1), turn(batch=2)), NO_REQUESTS)
    writer.notify(NO_TURNS, requests_of(request()))
    writer.close()
    writer.close()
    profile = parse_profile(stream.getvalue().split("\n"))
    assert profile.spans["batch"].tolist() == [1, 2]
    assert profile.requests["data_id"].tolist() == [7]
    now = time.time_ns() - time.monotonic_ns()
    assert abs(int(profile.spans["start_ns"][0]) - now) < 10**12, "ns since the epoch"


def test_the_sink_writes_to_the_current_stderr(capfd: pytest.CaptureFixture[str]):
    writer = ProfileWriter(["bow"])
    writer.start()
    writer.notify(turns_of(turn()), NO_REQUESTS)
    writer.close()
    out, err = capfd.readouterr()
    assert out == ""
    assert err.startswith(f"PROFILE\tpid:{os.getpid()}\tprep#[bow|0]_0:")


def parts_of(data_id, target, *ends_ns):
    rows = [
        (data_id, target, number, PartKind.GIVEN, 1_000_000, end_ns, end_ns)
        for number, end_ns in enumerate(ends_ns)
    ]
    return np.array([*rows, (data_id, target, len(rows), PartKind.EMPTY, 1, 1, 1)], PART)


def test_streams_are_written_with_their_requests_and_summed():
    stream = io.StringIO()
    writer = ProfileWriter(["bow"], stream=stream)
    writer.start()
    writer.notify_parts(parts_of(7, PIPELINE, 5_000_000, 6_000_000))
    writer.notify_parts(parts_of(8, PIPELINE, 3_000_000))  # under way still
    writer.notify_parts(parts_of(7, PIPELINE, 10_000_000))
    writer.notify_parts(parts_of(7, 0, 2_000_000, 4_000_000))
    writer.notify(turns_of(turn()), requests_of(request()))
    writer.notify(NO_TURNS, requests_of(request()))
    writer.close()
    profile = parse_profile(stream.getvalue().split("\n"))
    assert profile.damaged == 0
    assert profile.streams["data_id"].tolist() == [7, 7]
    figures = figures_of(
        profile.spans, profile.requests, profile.names, profile.sample, profile.streams
    )
    whole, made = figures.streams
    assert (whole.name, whole.streams, whole.parts, whole.gap_ms) == ("", 1, 3, 2.5)
    assert whole.first.p50 == 4.0
    assert (made.name, made.parts, made.first.mean, made.gap_ms) == ("bow", 2, 1.0, 2.0)
    text = report_text("record", figures, advise(figures))
    assert "1 stream to callers, 3 parts: the first after 4.000 ms" in text
    assert "1 stream of bow, 2 parts: " in text
    assert "then every 2.500 ms" in text


class Pieces(io.StringIO):
    """Keeps the pieces that were written at once."""

    def __init__(self) -> None:
        super().__init__()
        self.pieces: list[str] = []

    def write(self, text: str) -> int:
        self.pieces.append(text)
        return len(text)


def test_lines_are_written_whole_in_pieces_that_a_pipe_takes_at_once():
    stream = Pieces()
    writer = ProfileWriter(["bow"], stream=stream)
    writer.start()
    writer.notify(turns_of(*(turn(batch=n) for n in range(100))), NO_REQUESTS)
    writer.close()
    assert 2 < len(stream.pieces) < 50
    assert all(len(piece) <= 4096 and piece.endswith("\n") for piece in stream.pieces)
    assert len(parse_profile("".join(stream.pieces).split("\n")).spans) == 100


def test_a_slow_reader_does_not_block_the_flush():
    stopped, go_on = threading.Event(), threading.Event()

    class Slow(Pieces):
        def flush(self) -> None:
            stopped.set()
            go_on.wait()

    stream = Slow()
    writer = ProfileWriter(["bow"], stream=stream)
    writer.start()
    writer.notify(turns_of(turn()), NO_REQUESTS)
    stopped.wait()
    for _ in range(1_000):
        writer.notify(turns_of(turn()), NO_REQUESTS)
    go_on.set()
    writer.close()
    assert 1 < len(stream.pieces) < 1_000


def test_a_closed_stream_is_logged_once(caplog: pytest.LogCaptureFixture):
    stream = io.StringIO()
    stream.close()
    writer = ProfileWriter(["bow"], stream=stream)
    writer.start()
    for _ in range(3):
        writer.notify(turns_of(turn()), NO_REQUESTS)
    writer.close()
    (record,) = [r for r in caplog.records if r.levelno == logging.ERROR]
    assert "no more PROFILE lines" in record.getMessage()


def test_rows_of_an_engine_are_written_and_parsed():
    stream = io.StringIO()

    async def calls() -> None:
        writer = ProfileWriter(["a", "b"], stream=stream)
        writer.start()
        async with Engine(chain("a", "b")) as engine:
            engine.journal.sinks.append(writer)
            await asyncio.gather(*(engine.ask() for _ in range(5)))
            engine.journal.flush()
            writer.close()
            profile = parse_profile(stream.getvalue().split("\n"))
            assert len(engine.spans) == 10
            for field in ("op", "worker", "batch", "data_id", "rows", "outcome"):
                assert profile.spans[field].tolist() == [row[field] for row in engine.spans]
            assert sorted(profile.requests["data_id"]) == [0, 1, 2, 3, 4]

    run_virtual(calls())


# --- samples ----------------------------------------------------------------------------------

SECOND = 10**9


def played_on(turns: Rows, requests: Rows, per_s: int, fold_ns: int = SECOND // 20) -> Profile:
    """Write this traffic by the sink, a fold each `fold_ns`, and read it again."""
    stream = io.StringIO()
    writer = ProfileWriter(["words", "bow"], per_s, stream=stream)
    writer._background._limit = 10**6  # here it is not to fall behind
    writer.start()
    turns = turns[np.lexsort((turns["batch"], turns["op"], turns["end_ns"]))]
    requests = requests[np.argsort(requests["end_ns"], kind="stable")]
    first, last = int(requests["start_ns"].min()), int(requests["end_ns"].max())
    edges = np.arange(first, last + fold_ns, fold_ns)
    of_turns = np.searchsorted(turns["end_ns"], edges, side="right")
    of_requests = np.searchsorted(requests["end_ns"], edges, side="right")
    for number in range(len(edges) - 1):
        fold = (
            turns[of_turns[number] : of_turns[number + 1]],
            requests[of_requests[number] : of_requests[number + 1]],
        )
        if fold[0].size or fold[1].size:
            writer.notify(*fold)
    writer.close()
    return parse_profile(stream.getvalue().split("\n"))


def figures(profile: Profile) -> Figures:
    return figures_of(profile.spans, profile.requests, profile.names, profile.sample)


def traffic(
    per_s: float,
    seconds: float,
    took_ms: float,
    first_id: int = 0,
    at_s: float = 1.0,
    seed: int = 7,
) -> tuple[Rows, Rows]:
    """Requests that come when they like, in batches of up to four; a tenth of them fails."""
    rng = np.random.default_rng(seed)
    count = int(per_s * seconds)
    begun = np.sort(rng.integers(0, int(seconds * SECOND), count)) + int(at_s * SECOND)
    batch = np.sort(rng.integers(0, max(1, count * 2 // 5), count))
    leader = np.unique(batch, return_inverse=True)
    first = np.searchsorted(batch, leader[0])[leader[1]]
    last = np.searchsorted(batch, leader[0], side="right")[leader[1]] - 1
    start = begun[last] + 1_000
    end = start + rng.exponential(took_ms * 1e6, count).astype(np.int64)[first]
    turns, requests = np.zeros(count, SPAN), np.zeros(count, REQUEST)
    turns["data_id"] = requests["data_id"] = first_id + np.arange(count)
    turns["batch"], turns["worker"] = first_id + batch, batch % 4
    turns["rows"] = requests["rows"] = 1
    turns["outcome"] = requests["outcome"] = np.where(
        rng.random(count) < 0.1, Outcome.BACKEND, Outcome.OK
    )
    requests["target"] = PIPELINE
    turns["ready_ns"] = begun
    for name in ("start_ns", "preprocess_end_ns"):
        turns[name] = start
    for name in ("process_end_ns", "end_ns", "result_received_ns"):
        turns[name] = end
    for name in ("start_ns", "admitted_ns", "dispatched_ns"):
        requests[name] = begun
    for name in ("completed_ns", "end_ns"):
        requests[name] = end
    return turns, requests


def about(found: Figures, expected: Figures, within: float = 0.05) -> None:
    """All that counts, waits or takes time is the same, but for so much.

    But for the median: a service on paper has two latencies, each of them half of the time.
    """
    for name in ("seconds", "requests", "failed", "inside", "per_s", "graph_ms"):
        assert getattr(found, name) == pytest.approx(getattr(expected, name), within), name
    for name in ("mean", "p95", "p99"):
        ours, theirs = getattr(found.latency, name), getattr(expected.latency, name)
        assert ours == pytest.approx(theirs, 2 * within), name
    assert found.path is not None
    assert expected.path is not None
    assert found.path.ops == expected.path.ops
    assert found.path.share == pytest.approx(expected.path.share, within)
    assert found.path.cost_ms == pytest.approx(expected.path.cost_ms, 2 * within)
    for ours, theirs in zip(found.ops, expected.ops, strict=True):
        for name in ("requests", "batches", "batch_size", "visits", "busy", "cost_ms"):
            wanted = pytest.approx(getattr(theirs, name), within, abs=0.001)
            assert getattr(ours, name) == wanted, f"{ours.name}.{name}"
        for name in ("queue_ms", "queue_p95_ms", "waiting", "failed"):
            wanted = pytest.approx(getattr(theirs, name), 3 * within, abs=0.01)
            assert getattr(ours, name) == wanted, f"{ours.name}.{name}"
        assert (ours.name, ours.workers) == (theirs.name, theirs.workers)


def test_a_sample_of_a_busy_service_gives_equal_figures_and_advice():
    ops = [FakeOp(0.2, 0.0, concurrency=2), FakeOp(0.1, 1.0, 0.05, 2, batch_size=8)]
    turns, requests = play(ops, clients=40, count=20_000)
    all_of_it, sample = (played_on(turns, requests, per_s) for per_s in (0, 200))
    assert len(all_of_it.requests) == 20_000
    assert 300 < len(sample.requests) < 1_500
    about(figures(sample), figures(all_of_it))
    (ours, theirs) = (advise(figures(found)) for found in (sample, all_of_it))
    assert (ours.bottleneck, ours.is_full) == (theirs.bottleneck, theirs.is_full)
    assert ours.as_config() == theirs.as_config()
    assert ours.expected_per_s == pytest.approx(theirs.expected_per_s, 0.05)
    assert figures(sample).ops[1].most_waiting == pytest.approx(24, abs=6)


@pytest.mark.parametrize("took_ms", [0.05, 1.0, 20.0], ids="{}ms".format)
def test_a_sample_knows_the_idle_time(took_ms):
    """Of 3,000 requests/s that take 0.05 ms each, some tenths of the time."""
    turns, requests = traffic(3_000, 8, took_ms)
    result, expected = (figures(played_on(turns, requests, per_s)) for per_s in (300, 0))
    about(result, expected, 0.1)
    assert result.latency.p50 == pytest.approx(expected.latency.p50, 0.1)
    assert result.seconds == pytest.approx(expected.seconds, 0.02)


def test_a_sample_of_a_varying_load_adds_up():
    parts = [
        traffic(6_000, 3, 1.0),
        traffic(50, 6, 1.0, first_id=20_000, at_s=9.0),
        traffic(1_000, 4, 1.0, first_id=30_000, at_s=15.0),
    ]
    turns, requests = map(np.concatenate, zip(*parts, strict=True))
    sample = played_on(turns, requests, 200)
    about(figures(sample), figures(played_on(turns, requests, 0)), 0.1)
    calm = (sample.requests["data_id"] >= 20_000) & (sample.requests["data_id"] < 30_000)
    assert 200 < calm.sum() <= 300
    assert set(sample.sample.requests[calm][50:]) == {1.0}


def test_few_requests_are_all_written_without_weights():
    turns, requests = traffic(150, 5, 1.0)
    result = played_on(turns, requests, 200)
    assert len(result.requests) == len(requests)
    assert len(result.spans) == len(turns)
    assert set(result.sample.requests) == set(result.sample.spans) == {1.0}
    assert not len(result.sample.loads)


def test_copies_of_a_server_are_there_at_the_same_time():
    """Each of them is idle for some of it, all of them together for less."""
    whole, sample = (
        [played_on(*traffic(2_000, 5, 0.3, seed=seed), per_s=per_s) for seed in (1, 2)]
        for per_s in (0, 200)
    )
    expected, result = figures(_together(*whole)), figures(_together(*sample))
    assert expected.seconds < 5.0
    assert result.seconds == pytest.approx(expected.seconds, 0.1)


def _together(*copies: Profile) -> Profile:
    lists = zip(*((c.spans, c.requests, c.span_pids, c.request_pids) for c in copies), strict=True)
    turns, requests, turn_pids, request_pids = map(np.concatenate, lists)
    sample = type(copies[0].sample)(
        np.concatenate([copy.sample.spans for copy in copies]),
        np.concatenate([copy.sample.requests for copy in copies]),
        np.concatenate([copy.sample.loads for copy in copies]),
    )
    return Profile(turns, requests, copies[0].names, turn_pids, request_pids, 0, sample)


def test_a_report_names_its_sample():
    turns, requests = traffic(4_000, 4, 1.0)
    result = figures(played_on(turns, requests, 200))
    text = report_text("p", result, advise(result))
    assert text.startswith("p: 16,")
    share = result.requests / result.told
    assert f"a sample of 1 in {share:.3g}: the record has {result.told} requests" in text
    whole = figures(played_on(turns, requests, 0))
    assert "sample" not in report_text("p", whole, advise(whole))
