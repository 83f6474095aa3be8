"""The tracer: what it makes of rows, the layout of its blocks, the files it writes."""

from __future__ import annotations

import os
import re
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from pipeline import Op, RequestOp, ResponseOp
from pipeline.config.schema import LogConfig, load_config
from pipeline.engine.graph import build_graph
from pipeline.engine.journal.journal import NO_WORKER, PIPELINE, REQUEST, SPAN, Outcome, Rows
from pipeline.engine.state import EngineState, OpState, WorkersState
from pipeline.errors import InitError
from pipeline.observe.paddle.tracer import (
    BatchTimes,
    Interval,
    OpInterval,
    TracedGraph,
    Tracer,
    TracerFiles,
    tracer_files,
)

MS = 1_000_000
NO_TURNS = np.array([], SPAN)
NO_REQUESTS = np.array([], REQUEST)
GRAPH = TracedGraph(["uci", "sum"], [["@DAGExecutor"], ["uci", "other"]], 4, 10)


class Clock:
    """Seconds that pass when told. Rows of the tests count their ms from its start."""

    START_S = 1000.0

    def __init__(self) -> None:
        self.now_s = self.START_S

    def __call__(self) -> float:
        return self.now_s


def at(ms: float) -> int:
    return int(Clock.START_S * 1e9 + ms * MS)


def turn(
    start: float, op: int = 0, worker: int = 0, batch: int = 1, outcome: int = 0, **ms: float
) -> Any:
    """A turn of 1 ms preprocess, 5 ms process, 2 ms postprocess, taken back 1 ms later."""
    times = {
        "ready": start, "start": start, "prepared": start + 1, "processed": start + 6,
        "end": start + 8, "taken": start + 9,
    }  # fmt: skip
    return (op, worker, batch, 7, 1, outcome, *(at(value) for value in (times | ms).values()))


def request(data_id: int, latency: float, outcome: int = 0, target: int = PIPELINE) -> Any:
    begin, end = at(0), at(latency)
    code = 0 if outcome == Outcome.OK else 6000
    return (data_id, target, 1, outcome, code, begin, begin, begin, end, end, 0, 0, 0)


def turns_of(*rows: Any) -> Rows:
    return np.array(list(rows), SPAN)


def requests_of(*rows: Any) -> Rows:
    return np.array(list(rows), REQUEST)


def state(group: tuple[str, ...] = ()) -> EngineState:
    workers = WorkersState("thread", 1, 1, 0)
    ops = [OpState("uci", 9, 3, 1, workers, group), OpState("sum", 0, 0, 0, workers, group)]
    return EngineState(True, 0, 0, 0, 0, ops)


class Traced:
    """A tracer that writes to a folder, and what is there when it is closed."""

    def __init__(self, folder: Path, **files: Any) -> None:
        self.clock = Clock()
        self.file = folder / "pipeline.tracer"
        self.group: tuple[str, ...] = ()
        output = TracerFiles(self.file, **files)
        self.tracer = Tracer(GRAPH, lambda: state(self.group), output, self.clock)
        self.tracer.start()
        self.notify = self.tracer.notify

    def tick(self, seconds: float = 1.0) -> None:
        self.clock.now_s += seconds
        self.tracer.tick()

    def lines(self) -> list[str]:
        """Without the time before each, which is checked here."""
        self.tracer.close()
        stamp = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} ")
        lines = self.file.read_text(encoding="utf-8").splitlines()
        assert all(stamp.match(line) for line in lines)
        return [stamp.sub("", line, count=1) for line in lines]

    def values(self, section: str) -> list[dict[str, str]]:
        """`name[value]` of a section, of each block that has it."""
        collected: list[dict[str, str]] = []
        inside = False
        for line in self.lines():
            if not line.startswith("\t"):
                inside = line == section
                if inside:
                    collected.append({})
            elif inside and (match := re.fullmatch(r"\t+(.+?)\[(.*)\]", line)):
                collected[-1][match[1]] = match[2]
        return collected


@pytest.fixture
def traced(tmp_path: Path) -> Iterator[Traced]:
    traced = Traced(tmp_path)
    yield traced
    traced.tracer.close()


# --- layout ---------------------------------------------------------------------------------------


def test_a_block_has_the_predecessors_layout(traced: Traced):
    traced.notify(
        turns_of(turn(10), turn(30, batch=2)),
        requests_of(
            *(request(n, 0.5 + n / 10) for n in range(5)), request(5, 1.0, Outcome.BACKEND)
        ),
    )
    traced.tick()
    assert traced.lines() == [
        "==================== TRACER ======================",
        "Op(uci):",
        "\tin[10.5 ms]",
        "\tprep[1.0 ms]",
        "\tmidp[5.0 ms]",
        "\tpostp[2.0 ms]",
        "\tout[1.0 ms]",
        "\tidle[0.5897]",
        "DAGExecutor:",
        "\tQuery count[6]",
        "\tQPS[6.0 q/s]",
        "\tSucc[0.833333]",
        "\tError req[5]",
        "\tLatency:",
        "\t\tave[0.75 ms]",
        "\t\t.50[0.8 ms]",
        "\t\t.60[0.8 ms]",
        "\t\t.70[0.9 ms]",
        "\t\t.80[0.9 ms]",
        "\t\t.90[1.0 ms]",
        "\t\t.95[1.0 ms]",
        "\t\t.99[1.0 ms]",
        "Channel (server worker num[4]):",
        "\tchl0(In: ['@DAGExecutor'], Out: ['uci']) size[3/10]",
        "\tchl1(In: ['uci', 'other'], Out: ['sum']) size[0/10]",
    ]


def test_a_block_ends_with_the_groups_of_ops(traced: Traced):
    traced.group = ("uci", "sum")
    traced.notify(turns_of(turn(10)), NO_REQUESTS)
    traced.tick()
    assert traced.lines()[-2:] == [
        "\tchl1(In: ['uci', 'other'], Out: ['sum']) size[0/10]",
        "In one go: ['uci', 'sum']",
    ]


def test_an_idle_interval_writes_no_block(traced: Traced):
    traced.tick()
    traced.notify(turns_of(turn(1100)), NO_REQUESTS)
    traced.tick()
    traced.tick()
    traced.notify(NO_TURNS, requests_of(request(1, 1)))
    traced.tick()
    lines = traced.lines()
    assert lines.count("==================== TRACER ======================") == 2
    assert (lines.count("Op(uci):"), lines.count("DAGExecutor:")) == (1, 1)


def test_the_rest_is_written_at_the_end(traced: Traced):
    traced.notify(turns_of(turn(1)), NO_REQUESTS)
    assert "Op(uci):" in traced.lines()


def test_a_name_cannot_start_a_line(tmp_path: Path):
    graph = TracedGraph(["a\nOp(b):\ud800"], [["c\r\n"]], 1)
    file = tmp_path / "trace"
    tracer = Tracer(graph, state, TracerFiles(file), Clock())
    tracer.start()
    tracer.notify(turns_of(turn(1)), NO_REQUESTS)
    tracer.close()
    assert r"Op(a\nOp(b):\ud800):" in file.read_text()
    assert len(re.findall(r"^\S+ \S+ Op\(", file.read_text(), re.MULTILINE)) == 1


# --- Ops ------------------------------------------------------------------------------------------


def test_the_times_of_a_batch_count_once_however_many_requests_it_has(traced: Traced):
    traced.notify(turns_of(*[turn(10)] * 8, turn(20, batch=2, processed=36, end=38, taken=39)),
                NO_REQUESTS)  # fmt: skip
    (op,) = traced.values("Op(uci):")
    assert (op["prep"], op["midp"]) == ("1.0 ms", "10.0 ms")


def test_a_batch_counts_if_one_of_its_requests_succeeded(traced: Traced):
    failed = Outcome.BACKEND
    traced.notify(
        turns_of(
            turn(10, outcome=failed),
            turn(10),
            turn(30, batch=2, outcome=failed, processed=90),
            turn(50, batch=3, outcome=failed),
            turn(50, op=1, outcome=failed),
        ),
        NO_REQUESTS,
    )
    assert [op["midp"] for op in traced.values("Op(uci):")] == ["5.0 ms"]
    assert traced.values("Op(sum):") == []


def test_an_interval_in_which_every_batch_failed_is_written_for_its_requests(traced: Traced):
    traced.notify(
        turns_of(turn(1, outcome=Outcome.BACKEND)), requests_of(request(1, 1, Outcome.BACKEND))
    )
    traced.tick()
    assert "Op(uci):" not in traced.lines()
    assert "DAGExecutor:" in traced.lines()


def test_turns_that_never_ran_are_in_no_batch(traced: Traced):
    lost = (0, NO_WORKER, -1, 1, 1, Outcome.REJECTED, *[at(3)] * 6)
    traced.notify(turns_of(lost, turn(10), lost), NO_REQUESTS)
    (op,) = traced.values("Op(uci):")
    assert op["in"] == "10.0 ms"


def test_in_is_the_wait_of_a_worker_since_its_batch_before(traced: Traced):
    traced.notify(turns_of(turn(10), turn(30, worker=1, batch=2)), NO_REQUESTS)
    traced.tick()
    traced.notify(turns_of(turn(119, batch=3)), NO_REQUESTS)  # of worker 0, taken back at 19
    traced.tick()
    assert [op["in"] for op in traced.values("Op(uci):")] == ["20.0 ms", "100.0 ms"]


def test_in_and_out_overlap_with_no_batch_of_the_same_worker(traced: Traced):
    """A worker that has its next batch at hand is not idle, when ever the last one is taken."""
    traced.notify(turns_of(turn(0, taken=50), turn(8, batch=2, taken=50)), NO_REQUESTS)
    (op,) = traced.values("Op(uci):")
    assert (op["in"], op["out"]) == ("0.0 ms", "17.0 ms")  # of 0 and 34


def test_a_stage_that_did_not_end_lasts_no_time(traced: Traced):
    odd = turn(10, processed=-Clock.START_S * 1e3)
    traced.notify(turns_of(odd), NO_REQUESTS)
    (op,) = traced.values("Op(uci):")
    assert (op["midp"], op["postp"]) == ("0.0 ms", "7.0 ms")


def test_an_op_that_takes_no_time_is_not_idle(traced: Traced):
    nothing = dict.fromkeys(("prepared", "processed", "end", "taken"), 0.0)
    traced.notify(turns_of(turn(0, **nothing)), NO_REQUESTS)
    assert traced.values("Op(uci):")[0]["idle"] == "0.0"


stages_ms = st.tuples(*[st.integers(0, 50)] * 5)


@given(
    st.lists(st.tuples(st.integers(0, 1), st.integers(0, 2), stages_ms, st.booleans()), max_size=30)
)
def test_sums_equal_those_of_a_plain_loop(batches: list[Any]):
    """Workers one after the other, without any two batches of a worker at a time."""
    ops, times = [OpInterval(), OpInterval()], BatchTimes(at(0))
    ends: dict[tuple[int, int], int] = {}
    expected = [[0] * 6, [0] * 6]
    for number, (op, worker, lengths, is_good) in enumerate(batches):
        wait, prep, midp, postp, out = lengths
        start = ends.get((op, worker), 0) + wait
        marks = np.cumsum([start, prep, midp, postp, out]).tolist()
        ends[op, worker] = marks[-1]
        outcome = Outcome.OK if is_good else Outcome.BACKEND
        row = (op, worker, number, 1, 1, outcome, at(start), *(at(ms) for ms in marks))
        times.add(turns_of(row, row), ops)
        if is_good:
            added = (1, *(length * MS for length in lengths))
            expected[op] = [a + b for a, b in zip(expected[op], added, strict=True)]
    assert [[op.count, *op.sums.values()] for op in ops] == expected


# --- requests -------------------------------------------------------------------------------------


def test_requests_of_a_single_op_are_not_queries(traced: Traced):
    traced.notify(NO_TURNS, requests_of(request(1, 1, target=0), request(2, 1)))
    (dag,) = traced.values("DAGExecutor:")
    assert dag["Query count"] == "1"


def test_the_rate_is_by_the_true_length_of_the_interval(traced: Traced):
    traced.notify(NO_TURNS, requests_of(request(1, 1), request(2, 1)))
    traced.tick(0.5)
    (dag,) = traced.values("DAGExecutor:")
    assert dag["QPS"] == "4.0 q/s"


def test_an_interval_of_no_length_has_a_rate(traced: Traced):
    traced.notify(NO_TURNS, requests_of(request(1, 1)))
    traced.tick(0)
    assert traced.values("DAGExecutor:")


@pytest.mark.parametrize(("failed", "shown"), [(0, ""), (2, "0, 1")])
def test_failed_requests_are_named(traced: Traced, failed: int, shown: str):
    rows = [request(n, 1, Outcome.CANCELED if n < failed else Outcome.OK) for n in range(4)]
    traced.notify(NO_TURNS, requests_of(*rows))
    (dag,) = traced.values("DAGExecutor:")
    assert (dag["Error req"], dag["Succ"]) == (shown, str(1 - failed / 4))


def test_a_flood_of_failures_is_counted_and_not_all_named(traced: Traced):
    for first in range(0, 3000, 750):
        rows = [request(n, 1, Outcome.REJECTED) for n in range(first, first + 750)]
        traced.notify(NO_TURNS, requests_of(*rows))
    (dag,) = traced.values("DAGExecutor:")
    assert dag["Query count"] == "3000"
    assert dag["Error req"].endswith("998, 999, ...")


@given(st.lists(st.integers(0, 10**7), min_size=1, max_size=200))
def test_percentiles_are_the_predecessors(latencies_us: list[int]):
    interval = Interval(1, 0.0)
    interval.add_requests(requests_of(*(request(1, us / 1000) for us in latencies_us)))
    ordered = sorted(at(us / 1000) - at(0) for us in latencies_us)
    assert interval.percentiles_ms() == {
        p: ordered[int(len(ordered) * p / 100)] / MS for p in (50, 60, 70, 80, 90, 95, 99)
    }


def test_percentiles_of_very_many_requests_are_of_an_even_part_of_them():
    interval = Interval(1, 0.0)
    rows = np.zeros(100_000, REQUEST)
    rows["target"] = PIPELINE
    rows["end_ns"] = np.random.default_rng(0).permutation(100_000) * MS
    for _ in range(10):
        interval.add_requests(rows)
    assert interval.queries == 1_000_000
    assert sum(map(len, interval._latencies)) < 400_000
    for percent, latency_ms in interval.percentiles_ms().items():
        assert latency_ms == pytest.approx(percent * 1000, abs=500)


def test_a_long_interval_is_one_block_however_many_folds_it_has(traced: Traced):
    for first in range(0, 30_000, 1000):
        numbers = range(first, first + 1000)
        traced.notify(
            turns_of(*(turn(10 * n, batch=n) for n in numbers)),
            requests_of(*(request(n, 1) for n in numbers)),
        )
    traced.tick()
    traced.notify(NO_TURNS, requests_of(request(1, 1)))
    traced.tick(0.5)
    assert [dag["Query count"] for dag in traced.values("DAGExecutor:")] == ["30000", "1"]
    assert [dag["QPS"] for dag in traced.values("DAGExecutor:")] == ["30000.0 q/s", "2.0 q/s"]


def test_a_disk_that_hangs_does_not_fill_the_memory(traced: Traced):
    release, began, caught_up = (threading.Event() for _ in range(3))

    def hang() -> None:
        began.set()
        release.wait(30)

    traced.tracer._background.submit(hang)
    assert began.wait(30)
    rows = np.zeros(10_000, REQUEST)
    rows["target"] = PIPELINE
    references = [weakref.ref(rows)]
    for _ in range(100):
        copy = rows.copy()
        references.append(weakref.ref(copy))
        traced.notify(NO_TURNS, copy)
        del copy
    assert sum(ref() is not None for ref in references) < 30
    release.set()
    while not traced.tracer._background.submit(caught_up.set):  # it is full still
        os.sched_yield()
    assert caught_up.wait(30)
    assert "Query count[160000]" in "".join(traced.lines())


# --- files ----------------------------------------------------------------------------------------


def test_the_file_is_rotated(tmp_path: Path):
    traced = Traced(tmp_path, max_bytes=2000, backup_count=2)
    for number in range(10):
        traced.notify(turns_of(turn(number * 100, batch=number)), requests_of(request(number, 1)))
        traced.tick()
    traced.tracer.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "pipeline.tracer", "pipeline.tracer.1", "pipeline.tracer.2",
    ]  # fmt: skip
    assert all(path.stat().st_size <= 2000 for path in tmp_path.iterdir())


@pytest.mark.parametrize("keeps", [{"max_bytes": 0}, {"max_bytes": 500, "backup_count": 0}])
def test_the_file_is_not_rotated_where_that_is_off(tmp_path: Path, keeps: dict[str, int]):
    traced = Traced(tmp_path, **keeps)
    for number in range(10):
        traced.notify(turns_of(turn(number * 100, batch=number)), NO_REQUESTS)
        traced.tick()
    assert traced.lines().count("Op(uci):") == 10
    assert [path.name for path in tmp_path.iterdir()] == ["pipeline.tracer"]


def test_an_unwritable_file_is_an_error_at_the_start(tmp_path: Path):
    (tmp_path / "logs").write_text("a file")
    tracer = Tracer(GRAPH, state, TracerFiles(tmp_path / "logs" / "pipeline.tracer"))
    with pytest.raises(InitError, match=r"dag\.tracer: cannot write .*SERVING_LOG_PATH"):
        tracer.start()
    tracer.close()


def test_the_folder_is_made_and_the_file_continued(tmp_path: Path):
    for _ in range(2):
        traced = Traced(tmp_path / "new")
        traced.notify(turns_of(turn(1)), NO_REQUESTS)
        traced.tracer.close()
    assert traced.lines().count("Op(uci):") == 2


def test_the_benchmark_file_has_the_figures_of_the_last_interval(tmp_path: Path):
    benchmark = tmp_path / "benchmark.log"
    traced = Traced(tmp_path, benchmark=benchmark)
    traced.notify(turns_of(turn(1)), requests_of(request(1, 1)))
    traced.tick()
    traced.notify(
        turns_of(turn(1009.00001, batch=2), turn(1030, batch=3)),
        requests_of(*(request(n, 0.00001) for n in range(4)), request(4, 2, Outcome.OTHER)),
    )
    traced.tick(2)
    traced.tick()
    traced.tracer.close()
    safe_load = yaml.safe_load(benchmark.read_text())
    assert safe_load["uci"] == pytest.approx(
        {"count": 2, "in": 505.5, "prep": 1.0, "midp": 5.0, "postp": 2.0, "out": 1.0}, abs=0.01
    )
    tail = dict.fromkeys(("80", "90", "95", "99"), 2.0)
    assert safe_load["DAG"] == pytest.approx(
        {"query_count": 5, "qps": 2.5, "succ": 0.8, "avg": 0.400008}
        | dict.fromkeys(("50", "60", "70"), 0.00001)
        | tail
    )
    assert list(safe_load) == ["uci", "DAG"]


def test_names_of_any_kind_are_keys_of_the_benchmark_file(tmp_path: Path):
    names = ["no", "12", 'a: "b"\n#', "中\ud800"]
    graph = TracedGraph(names, [[]] * 4, 1)
    files = TracerFiles(tmp_path / "trace", benchmark=tmp_path / "benchmark.log")
    tracer = Tracer(graph, state, files, Clock())
    tracer.start()
    tracer.notify(turns_of(*(turn(1, op=n) for n in range(4))), NO_REQUESTS)
    tracer.close()
    safe_load = yaml.safe_load((tmp_path / "benchmark.log").read_text())
    assert list(safe_load)[:3] == names[:3]
    assert list(safe_load)[3].startswith("中")


@pytest.mark.parametrize(
    ("flag", "is_wanted"), [(None, False), ("0", False), ("", False), ("1", True), (" 1 ", True)]
)
def test_a_flag_enables_the_benchmark_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flag: str | None, is_wanted: bool
):
    monkeypatch.chdir(tmp_path)
    environ = {} if flag is None else {"FLAGS_profile_pipeline": flag}
    files = tracer_files(tmp_path / "logs", LogConfig(), environ=environ)
    assert files == TracerFiles(
        tmp_path / "logs" / "pipeline.tracer",
        64_000_000,
        3,
        tmp_path / "benchmark.log" if is_wanted else None,
    )


def test_each_replica_of_a_server_has_its_own_files(tmp_path: Path):
    log = LogConfig(max_bytes=7, backup_count=1)
    flags = {"FLAGS_profile_pipeline": "1"}
    files = [tracer_files(tmp_path, log, copy, flags) for copy in (None, 0, 1)]
    assert len({one.trace for one in files}) == 3
    assert len({one.benchmark for one in files}) == 3
    assert [(one.max_bytes, one.backup_count) for one in files] == [(7, 1)] * 3


def test_the_graph_is_described_by_names():
    read = RequestOp()
    left, right = Op("left", input_ops=[read]), Op("right", input_ops=[read])
    both = Op("both", input_ops=[left, right])
    graph = build_graph(ResponseOp(input_ops=[both]))
    config = load_config(yml_dict={"rpc_port": 0, "worker_num": 3, "dag": {"channel_size": 5}})
    assert TracedGraph.of(graph, config) == TracedGraph(
        ["left", "right", "both"], [["@DAGExecutor"], ["@DAGExecutor"], ["left", "right"]], 3, 5
    )
