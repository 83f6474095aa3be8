"""Process workers as their users meet them: payloads, logs, crashes and hangs of real scripts."""

from __future__ import annotations

import contextlib
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from doubles import answers, wait_until
from onnx import TensorProto, helper
from served import (
    PATIENCE_S,
    ServedWithClient,
    open_files_of,
    stat_of,
    unique,
    zombies_of,
)

PROCESSES = {"is_thread_op": False}


# The server that most tests share -------------------------------------------------------------

# Unguarded at module level; globals and late attributes are read inside the Ops: as in the field.
#
#   front (thread) > retried > limited x 2 > work > left (async), right, beside (thread) > tail
#
# A pair "<op>.<stage>": "<verb> <argument>" makes that Op do something in that stage.
RICH = '''
import argparse
import asyncio
import ctypes
import hashlib
import logging
import os
import pathlib
import resource
import signal
import time

import ml_dtypes
import numpy as np

from pipeline import Op, PipelineServer, RequestOp, ResponseOp

parser = argparse.ArgumentParser()
parser.add_argument("folder", type=pathlib.Path)
parser.add_argument("--suffix", default="?")
args = parser.parse_args()

MEGABYTE = 1_000_000
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def note(name, text):
    with open(args.folder / name, "a") as file:
        file.write(text + "\\n")


os.register_at_fork(before=lambda: note("forks", str(len(os.listdir("/proc/self/task")))))


class Note:
    def __init__(self, **fields):
        vars(self).update(fields)


def local_class():
    class Local:
        answer = 42

    return Local()


def read_only(array):
    array.setflags(write=False)
    return array


KINDS = {
    "scalars": lambda: {"i": 2**80, "f": 1.5, "b": True, "n": None, "c": 1j, 7: "number"},
    "numpy scalars": lambda: [np.float32(1.5), np.int8(3), np.bool_(True), np.datetime64(5, "s")],
    "texts": lambda: ["", "grün", "\\udc80 alone", "x" * MEGABYTE, "ü" * MEGABYTE],
    "bytes": lambda: [b"", b"\\0\\xff", bytes(range(256)) * 4_000, bytearray(b"x" * MEGABYTE)],
    "nested": lambda: {"l": [1, {"t": (b"x" * MEGABYTE, np.arange(9))}], "s": {1}, "e": [{}, ()]},
    "array": lambda: np.arange(6, dtype=np.float32).reshape(2, 3),
    "big array": lambda: np.arange(MEGABYTE // 4, dtype=np.float32).reshape(500, -1),
    "big arrays": lambda: [{"picture": np.full((640, 480, 3), i, np.uint8)} for i in range(3)],
    "fortran": lambda: np.asfortranarray(np.arange(MEGABYTE // 8, dtype=float).reshape(2, -1)),
    "slices": lambda: [np.arange(12)[::2], np.arange(MEGABYTE)[::-3], np.ones((3, 4))[:2, 1:].T],
    "read only": lambda: [read_only(np.arange(3)), read_only(np.zeros(MEGABYTE))],
    "shapes": lambda: [np.array(5.5), np.zeros((0, 4), np.int64), np.zeros((3, 0))],
    "dtypes": lambda: [
        np.ones(3, name) for name in ("bool", "int8", ">i4", "f2", "c16", "S3", "U3", "M8[ns]")
    ],
    "odd dtypes": lambda: [
        np.ones(3, ml_dtypes.bfloat16),
        np.zeros(2, [("a", "<i4"), ("b", "f4", (2,))]),
        np.array([{"x": 1}, "text", None], object),
    ],
    "user class": lambda: Note(text="hi", pixels=np.zeros(MEGABYTE, np.uint8)),
    "local class": local_class,
    "function": lambda: [len, describe, lambda number: number + int(args.folder.exists())],
    "generator": lambda: {"deep": [(number for number in range(3))]},
}


def digest(data):
    return hashlib.md5(data).hexdigest()


def describe(value):
    """What a payload is, down to the byte, in a line."""
    kind = type(value).__name__
    if isinstance(value, np.ndarray):
        bits = repr(value.tolist()).encode() if value.dtype.hasobject else value.tobytes()
        order = "F" if value.flags.f_contiguous and not value.flags.c_contiguous else "C"
        return f"{kind} {value.dtype.str} {value.dtype} {value.shape} {order} {digest(bits)}"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key!r}: {describe(item)}" for key, item in value.items()) + "}"
    if isinstance(value, (list, tuple, set)):
        return kind + "(" + ", ".join(map(describe, value)) + ")"
    if isinstance(value, (str, bytes, bytearray)):
        data = value.encode("utf-8", "surrogatepass") if kind == "str" else value
        return f"{kind} {len(value)} {digest(data)}"
    if isinstance(value, Note):
        return kind + describe(vars(value))
    if kind == "Local":
        return f"{kind} {value.answer}"
    if kind == "function":
        return f"{kind} {value.__name__} {value(20)}"
    return f"{kind} {value!r}"


def spoil(value):
    """Change everything that can be changed: what others see of it must not change."""
    if isinstance(value, np.ndarray):
        value[...] = np.zeros((), value.dtype)
    elif isinstance(value, bytearray):
        value[:] = bytes(len(value))
    elif isinstance(value, dict):
        for item in value.values():
            spoil(item)
        value["spoilt"] = True
    elif isinstance(value, (list, tuple)):
        for item in value:
            spoil(item)
        if isinstance(value, list):
            value.append("spoilt")
    elif isinstance(value, Note):
        spoil(vars(value))


class Acts(Op):
    def init_op(self):
        note("inits", f"{self.name} {self.concurrency_idx} {os.getpid()}")
        self.vocabulary = "abc"

    def set_mark(self, mark):
        self.mark = mark

    def preprocess(self, input_dicts, data_id, log_id):
        data = {}
        for answer in input_dicts.values():
            data.update(answer)
        return self.act("preprocess", data), False, None, ""

    def process(self, feed_batch, typical_logid):
        return self.act("process", feed_batch[0]), None, ""

    def postprocess(self, input_dicts, fetch_data, data_id, log_id):
        data = self.act("postprocess", fetch_data)
        data[self.name] = f"{self.concurrency_idx} {os.getpid()}"
        return data, None, ""

    def act(self, stage, data):
        verb, _, argument = data.get(f"{self.name}.{stage}", "").partition(" ")
        if verb:
            getattr(self, "do_" + verb)(argument, data)
        return data

    def do_hold(self, name, data):
        entered = args.folder / f"{name}.entering"
        entered.write_text(str(os.getpid()))
        entered.rename(args.folder / f"{name}.entered")
        while not (args.folder / f"{name}.released").exists():
            time.sleep(0.002)

    def do_words(self, argument, data):
        data["words"] = args.suffix + self.mark + self.late + self.vocabulary

    def do_hang(self, argument, data):
        while True:
            time.sleep(60)

    def do_segfault(self, argument, data):
        ctypes.string_at(0)

    def do_kill(self, argument, data):
        os.kill(os.getpid(), signal.SIGKILL)

    def do_exit(self, status, data):
        os._exit(int(status))

    def do_once(self, argument, data):
        name, verb, *rest = argument.split()
        if not (args.folder / name).exists():
            (args.folder / name).touch()
            getattr(self, "do_" + verb)(*rest or [""], data)

    def do_raise(self, text, data):
        raise ValueError(text)

    def do_log(self, text, data):
        logging.getLogger("pipeline.mine").warning(text)

    def do_make(self, kind, data):
        data["payload"] = self.kept = KINDS[kind]()
        self.do_look(kind, data)

    def do_look(self, argument, data):
        data["made"] = describe(data["payload"])

    def do_recall(self, argument, data):
        data["kept"] = describe(self.kept)

    def do_store(self, text, data):
        self.stored = text

    def do_stored(self, argument, data):
        data["stored"] = self.stored


class Reads(Acts):
    def postprocess(self, input_dicts, fetch_data, data_id, log_id):
        if "payload" in fetch_data:
            payload = fetch_data.pop("payload")
            fetch_data[f"{self.name}.saw"] = describe(payload)
            spoil(payload)
        return super().postprocess(input_dicts, fetch_data, data_id, log_id)


class AsyncReads(Reads):
    async def init_op(self):
        await asyncio.sleep(0)
        super().init_op()

    async def preprocess(self, input_dicts, data_id, log_id):
        await asyncio.sleep(0)
        return super().preprocess(input_dicts, data_id, log_id)

    async def process(self, feed_batch, typical_logid):
        await asyncio.sleep(0)
        return super().process(feed_batch, typical_logid)

    async def postprocess(self, input_dicts, fetch_data, data_id, log_id):
        await asyncio.sleep(0)
        return super().postprocess(input_dicts, fetch_data, data_id, log_id)


class Tail(Acts):
    def init_op(self):
        import onnxruntime

        super().init_op()
        self.session = onnxruntime.InferenceSession(
            str(args.folder / "double.onnx"), providers=["CPUExecutionProvider"]
        )

    def do_model(self, argument, data):
        feed = {"x": np.full((1, 2), float(argument), np.float32)}
        data["own session"] = str(self.session.run(["y"], feed)[0].tolist())
        data["predictor"] = str(self.client.predict(feed)["y"].tolist())


front = Acts(name="front", input_ops=[RequestOp()])
retried = Acts(name="retried", input_ops=[front], timeout=1000, retry=2)
limited = Acts(name="limited", input_ops=[retried], timeout=1000, concurrency=2)
work = Acts(name="work", input_ops=[limited])
left = AsyncReads(name="left", input_ops=[work])
right = Reads(name="right", input_ops=[work])
beside = Reads(name="beside", input_ops=[work])
tail = Tail(name="tail", input_ops=[left, right, beside])
work.set_mark("!")
server = PipelineServer("svc")
server.set_response_op(ResponseOp(input_ops=[tail]))
server.prepare_server(os.path.join(os.path.dirname(os.path.abspath(__file__)), "config.yml"))
work.late = "late"
server.run_server()
'''

IN_PROCESSES = {"retried": 1, "limited": 2, "work": 1, "left": 1, "right": 1, "tail": 1}
IN_THREADS = {"front", "beside"}
KINDS = re.findall(r'^    "([a-z ]+)": ', RICH, re.MULTILINE)


@pytest.fixture(scope="module")
def rich_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedWithClient]:
    folder = tmp_path_factory.mktemp("rich")
    save_doubling_model(folder / "double.onnx")
    config = {
        "dag": {**PROCESSES, "trust_workers": True},  # `beside` reads functions, too
        "op": {
            "tail": {"local_service_conf": {"model_config": "double.onnx"}},
            **{name: {"workers": "thread"} for name in IN_THREADS},
        },
    }
    served = ServedWithClient(folder, RICH, config, "--suffix", "+")
    try:
        yield served.wait_until_ready()
    finally:
        served.close()


@pytest.fixture(scope="module")
def whole(rich_server: ServedWithClient) -> tuple[int, int]:
    """Count the shared server's processes, zygotes included, and its open files."""
    rich_server.get({})
    assert rich_server.is_ready()
    return len(rich_server.family), open_files_of(rich_server.process.pid)


@pytest.fixture
def rich(rich_server: ServedWithClient, whole: tuple[int, int]) -> Iterator[ServedWithClient]:
    """The shared server, which is whole again after every test, and has nothing more."""
    processes, files = whole
    yield rich_server
    rich_server.wait_for(rich_server.is_ready)
    rich_server.wait_for(lambda: len(rich_server.family) == processes)
    rich_server.get({})
    rich_server.wait_for(lambda: open_files_of(rich_server.process.pid) <= files)
    assert zombies_of(rich_server.family) == []


def save_doubling_model(path: Path) -> None:
    """y = x + x, for rows of two."""
    shape = ["n", 2]
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "x"], ["y"])],
        "double",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
    )
    opset = [helper.make_opsetid("", 21)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=10), path)


# Where things run -----------------------------------------------------------------------------


def test_globals_late_attributes_and_results_of_init_op_are_present_in_a_worker(rich):
    assert rich.get({"work.process": "words"})["words"] == "+!lateabc"


def test_each_op_runs_in_its_configured_kind_of_worker(rich):
    ran_in = {name: int(where.split()[1]) for name, where in rich.get({}).items()}
    assert ran_in.keys() == IN_PROCESSES.keys() | IN_THREADS
    workers = [ran_in[name] for name in IN_PROCESSES]
    assert {ran_in[name] for name in IN_THREADS} == {rich.process.pid}
    assert len({*workers, rich.process.pid}) == len(workers) + 1
    assert set(workers) <= rich.family


def test_each_worker_process_runs_init_op_once_and_has_its_number(rich):
    with rich.held("limited.preprocess", count=2) as calls:
        pids = set(calls)
    answered = {answers(call.result(PATIENCE_S))["limited"] for call in calls.values()}
    inits = [line.split() for line in rich.text("inits").splitlines() if "front" not in line]
    in_processes = [init for init in inits if init[0] not in IN_THREADS]
    assert len({pid for _, _, pid in in_processes}) == len(in_processes)
    assert {(name, idx) for name, idx, _ in in_processes} == {
        (name, str(idx)) for name, count in IN_PROCESSES.items() for idx in range(count)
    }
    assert {line.split()[0] for line in answered} == {"0", "1"}
    assert {int(line.split()[1]) for line in answered} == pids
    assert {f"{idx} {pid}" for name, idx, pid in inits if name == "limited"} >= answered


def test_no_process_is_forked_while_another_thread_runs(rich):
    """Neither the zygotes nor, later, the workers."""
    assert set(rich.text("forks").split()) == {"1"}


def test_a_model_and_a_heavy_library_are_loaded_in_the_worker_only(rich):
    answer = rich.get({"tail.postprocess": "model 1.5"})
    assert answer["own session"] == answer["predictor"] == "[[3.0, 3.0]]"
    worker = answer["tail"].split()[1]
    assert "onnxruntime" in Path(f"/proc/{worker}/maps").read_text()
    assert "onnxruntime" not in Path(f"/proc/{rich.process.pid}/maps").read_text()


def test_async_methods_run_in_the_worker(rich):
    answer = rich.get({"left.process": "store it", "left.postprocess": "stored"})
    assert answer["stored"] == "it"
    assert int(answer["left"].split()[1]) != rich.process.pid


# Payloads -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "generator"])
@pytest.mark.parametrize("maker", ["front", "work"])
def test_each_op_gets_its_own_unchanged_copy_of_a_payload(rich, maker, kind):
    """Each of the three that read it changes all of it."""
    answer = rich.get({f"{maker}.postprocess": f"make {kind}"})
    assert len(answer["made"]) > 3
    assert answer["left.saw"] == answer["made"]
    assert answer["right.saw"] == answer["made"]
    assert answer["beside.saw"] == answer["made"]
    assert rich.get({f"{maker}.postprocess": "recall"})["kept"] == answer["made"]


def test_the_payload_of_a_client_arrives_unchanged(rich):
    for payload in (np.random.default_rng(1).random((500, 500), np.float32), b"\0x" * 500_000):
        feed = {"front.preprocess": "look", "payload": payload}
        answer = rich.client.predict(feed, pack_tensor_format=True, timeout=PATIENCE_S)
        assert answer.err_no == 0, answer.err_msg
        sights = {answer[key] for key in ("made", "left.saw", "right.saw", "beside.saw")}
        assert len(sights) == 1


def test_many_large_payloads_at_once_are_not_mixed_up(rich):
    kinds = ["big array", "nested", "bytes", "texts", "big arrays"] * 4
    calls = [rich.send({"work.postprocess": f"make {kind}"}) for kind in kinds]
    results = [answers(call.result(PATIENCE_S)) for call in calls]
    for answer in results:
        assert answer["left.saw"] == answer["right.saw"] == answer["made"]
    assert len({answer["made"] for answer in results}) == 5


def test_large_payloads_leave_no_file(rich):
    rich.get({"work.postprocess": "make big arrays"})
    for pid in rich.family:
        assert "/dev/shm" not in Path(f"/proc/{pid}/maps").read_text()


@pytest.mark.parametrize("maker", ["front", "work"])
def test_a_payload_that_cannot_be_sent_is_an_error_of_its_request_only(rich, maker):
    with rich.held("right.preprocess") as calls:
        answer = rich.ask({f"{maker}.postprocess": "make generator"})
        assert 7000 <= answer.err_no < 8000, answer.err_msg
        assert "generator" in answer.err_msg
        assert "payload" in answer.err_msg, "the key is named"
        assert re.search(rf"['\[]{maker}\b", answer.err_msg), "so is the Op"
    for pid, call in calls.items():
        assert answers(call.result(PATIENCE_S))["right"] == f"0 {pid}", "its worker lives"


def test_attributes_of_preprocess_are_present_in_postprocess_of_the_request(rich):
    texts = [f"text {number}" for number in range(24)]
    asked = [{"limited.preprocess": f"store {t}", "limited.postprocess": "stored"} for t in texts]
    calls = [rich.send(pairs) for pairs in asked]
    assert [answers(call.result(PATIENCE_S))["stored"] for call in calls] == texts


# Logs -----------------------------------------------------------------------------------------


def logged(served: ServedWithClient, op: str, mark: str) -> list[str]:
    """The lines of the log in which `mark` stands, once everything before now is in it."""
    end = next(unique)
    served.get({f"{op}.process": f"log {end} is the end"})
    served.wait_for(lambda: f"{end} is the end" in served.log)
    return [line for line in served.log.splitlines() if mark in line]


def test_a_line_of_a_worker_is_logged_once_with_its_pid(rich):
    mark = next(unique) + " happened"
    rich.get({"right.process": f"log {mark}"})
    (line,) = logged(rich, "right", mark)
    number = RICH[: RICH.index(".warning(text)")].count("\n") + 1
    assert line.startswith("WARNING ")
    assert line.endswith(f" [web_server.py:{number}] [pid {rich.pid_of('right')}] {mark}")


def test_a_traceback_of_a_worker_is_logged_once_with_its_pid(rich):
    mark = next(unique) + " happened"
    pid = rich.pid_of("right")
    answer = rich.ask({"right.process": f"raise {mark}"})
    assert answer.err_no == 10000
    assert mark in answer.err_msg
    lines = [line.removeprefix("  ") for line in logged(rich, "right", "")]  # of a traceback
    assert lines.count(f"ValueError: {mark}") == 1
    before = lines[: lines.index(f"ValueError: {mark}")]
    raised = max(i for i, line in enumerate(before) if line.startswith("ERROR "))
    assert f"[pid {pid}]" in before[raised]
    assert "[right] process raised" in before[raised]
    assert before[raised + 1] == "Traceback (most recent call last):"
    assert any("in do_raise" in line for line in before[raised:])
    assert rich.pid_of("right") == pid, "an exception costs no worker"


# Workers that die -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("act", "reason"),
    [("segfault", "SIGSEGV"), ("exit 3", "exit code 3"), ("kill", "SIGKILL")],
)
@pytest.mark.parametrize("stage", ["preprocess", "process", "postprocess"])
def test_a_request_that_kills_its_worker_gets_the_cause_of_death(rich, stage, act, reason):
    pid = rich.pid_of("work")
    answer = rich.ask({f"work.{stage}": act})
    assert answer.err_no != 0
    assert reason in answer.err_msg
    assert "work" in answer.err_msg, "the Op is named"
    assert rich.pid_of("work") != pid


def test_the_request_after_the_death_of_an_idle_worker_runs_at_another(rich):
    pid = rich.pid_of("left")
    os.kill(pid, signal.SIGKILL)
    assert rich.pid_of("left") != pid


def test_requests_waiting_behind_a_deadly_one_are_served(rich):
    with rich.held("right.preprocess") as calls:
        ((pid, first),) = calls.items()
        behind = [rich.send({}) for _ in range(4)]
        os.kill(pid, signal.SIGKILL)
        assert "SIGKILL" in first.result(PATIENCE_S).err_msg
        for call in behind:
            assert answers(call.result(PATIENCE_S))["right"] != f"0 {pid}"


def test_a_call_that_kills_its_worker_is_repeated_with_retry(rich):
    pid = rich.pid_of("retried")
    answer = rich.get({"retried.process": f"once {next(unique)} segfault"})
    assert answer["retried"] != f"0 {pid}"


def test_a_killed_zygote_is_replaced(rich):
    zygote = stat_of(rich.pid_of("right"))[1]
    assert zygote in rich.family - {rich.process.pid}
    os.kill(zygote, signal.SIGKILL)
    wait_until(lambda: stat_of(zygote)[0] == "X")
    wait_until(lambda: rich.ask({}).err_no == 0)
    assert stat_of(rich.pid_of("right"))[1] != zygote


# Workers that were taken over ------------------------------------------------------------------

SLY = """
import os
import pathlib
import sys

from pipeline import Op, PipelineServer, RequestOp, ResponseOp

folder = pathlib.Path(sys.argv[1])
server_pid = os.getpid()


class Sly:
    def __reduce__(self):
        return os.mkdir, (str(folder / "taken"),)


class Note:
    def __init__(self, text):
        self.text = text


class Works(Op):
    def preprocess(self, input_dicts, data_id, log_id):
        assert os.getpid() != server_pid
        asked = input_dicts["@DAGExecutor"]["for"]
        return {"for": asked, "object": Sly() if "sly" in asked else Note("hello")}


class Reads(Op):
    def preprocess(self, input_dicts, data_id, log_id):
        read = input_dicts["works"]
        return {"text": read["object"].text if "object" in read else "", "pid": str(os.getpid())}


class Packs(ResponseOp):
    def pack_response_package(self, channeldata):
        if channeldata.payload and "object" in channeldata.payload:
            channeldata.payload.pop("object")
        return super().pack_response_package(channeldata)


works = Works("works", RequestOp())
server = PipelineServer("svc")
server.set_response_op(Packs(works if "last" in sys.argv else Reads("reads", works)))
server.prepare_server(os.path.join(os.path.dirname(os.path.abspath(__file__)), "config.yml"))
server.run_server()
"""


@pytest.mark.parametrize("reader", ["thread", "last", "process"])
def test_the_data_of_a_worker_runs_no_code_in_the_server(tmp_path, reader):
    config = {
        "op": {
            "works": {"workers": "process"},
            "reads": {"workers": "process" if reader == "process" else "thread"},
        }
    }
    with contextlib.closing(ServedWithClient(tmp_path, SLY, config, reader)) as served:
        served.wait_until_ready()
        answer = served.ask({"for": "sly"})
        assert (tmp_path / "taken").exists() == (reader == "process"), "a worker opens anything"
        if reader != "process":
            assert answer.err_no == 7000
            assert "[works] the answer contains posix.mkdir," in answer.err_msg
            assert "allow_in_payloads(posix.mkdir)" in answer.err_msg
        assert served.ask({"for": "honest"}).err_no == 0
        if reader == "thread":
            assert served.get({"for": "honest"})["text"] == "hello"


# Workers that hang ----------------------------------------------------------------------------


def test_a_call_over_its_timeout_costs_its_worker_and_no_other(rich):
    with rich.held("limited.preprocess", count=2) as calls:
        pids = set(calls)
    for call in calls.values():
        answers(call.result(PATIENCE_S))
    with rich.held("limited.preprocess") as calls:
        ((kept, call),) = calls.items()
        answer = rich.ask({"limited.process": "hang"})
        assert answer.err_no == 6000
        assert "limited" in answer.err_msg
        ran_in = {int(rich.get({})["limited"].split()[1]) for _ in range(4)}
        assert not ran_in & pids, "the other is held, the one that hung is gone"
    assert int(answers(call.result(PATIENCE_S))["limited"].split()[1]) == kept
    wait_until(lambda: not (pids - {kept}) & rich.family)


def test_no_request_waits_for_a_busy_worker_while_another_is_idle(rich):
    """Also where batches are so quick that they are sent ahead to workers that are busy."""
    for call in [rich.send({}) for _ in range(200)]:
        answers(call.result(PATIENCE_S))
    with rich.held("limited.preprocess") as calls:
        ((busy, held),) = calls.items()
        for call in [rich.send({}) for _ in range(24)]:
            assert int(answers(call.result(PATIENCE_S))["limited"].split()[1]) != busy
    assert int(answers(held.result(PATIENCE_S))["limited"].split()[1]) == busy


def test_a_call_that_hangs_once_succeeds_with_retry(rich):
    pid = rich.pid_of("retried")
    answer = rich.get({"retried.process": f"once {next(unique)} hang"})
    assert answer["retried"] != f"0 {pid}"


def test_consecutive_hanging_requests_fail_alone_and_others_are_answered(rich):
    """Of the only worker: four processes in a row that never got to answer."""
    hanging = [rich.send({"retried.process": "hang"}) for _ in range(2)]
    waiting = [rich.send({}) for _ in range(8)]
    assert [call.result(PATIENCE_S).err_no for call in hanging] == [6000, 6000]
    for call in waiting:
        answers(call.result(PATIENCE_S))


def test_requests_end_though_a_worker_with_a_timeout_was_stopped(rich):
    with rich.held("limited.preprocess", count=2) as calls:
        stopped = min(calls)
        os.kill(stopped, signal.SIGSTOP)
        wait_until(lambda: stat_of(stopped)[0] == "T")
        waiting = [rich.send({}) for _ in range(6)]
    try:
        for call in [*waiting, *calls.values()]:
            answer = call.result(PATIENCE_S)
            assert answer.err_no == 0 or "limited" in answer.err_msg
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(stopped, signal.SIGCONT)


def test_a_call_whose_worker_was_stopped_ends_with_its_worker(rich):
    with rich.held("limited.process") as calls:
        ((pid, call),) = calls.items()
        with contextlib.suppress(ProcessLookupError):  # the timeout runs already
            os.kill(pid, signal.SIGSTOP)
        answer = call.result(PATIENCE_S)
        assert answer.err_no == 6000 or "SIGSTOP" in answer.err_msg, "whichever is seen first"
    wait_until(lambda: pid not in rich.family)


def test_a_request_survives_that_the_only_worker_was_stopped_for_a_while(rich):
    pid = rich.pid_of("right")
    os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: stat_of(pid)[0] == "T")
    call = rich.send({})
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)
    answers(call.result(PATIENCE_S))


# Batches --------------------------------------------------------------------------------------

# Threads by default, one Op in a process; a batch is of four requests, however long it takes.
BATCH = """
import ctypes
import os
import pathlib
import resource
import sys

import numpy as np

from pipeline import Op, RequestOp
from pipeline.web_service import WebService

FOLDER = pathlib.Path(sys.argv[1])
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


class Batch(Op):
    def preprocess(self, input_dicts, data_id, log_id):
        ((_, asked),) = input_dicts.items()
        self.asked = asked
        if asked["does"] == "raise early":
            raise ValueError("raised early")
        kinds = ["raise", "segfault", "exit"]
        kind = kinds.index(asked["does"]) + 1 if asked["does"] in kinds else 0
        return {"x": np.array([[float(asked["number"]), kind]])}, False, None, ""

    def process(self, feed_batch, typical_logid):
        numbers, kinds = feed_batch[0]["x"].T
        with open(FOLDER / "calls", "a") as calls:
            calls.write(f"{len(numbers)}\\n")
        if 1 in kinds:
            raise ValueError("raised")
        if 2 in kinds:
            ctypes.string_at(0)
        if 3 in kinds:
            os._exit(3)
        return {"y": 2 * numbers}, None, ""

    def postprocess(self, input_dicts, fetch_data, data_id, log_id):
        answer = {"twice": str(fetch_data["y"][0]), "own": self.asked["number"]}
        return {**answer, "pid": str(os.getpid())}, None, ""


class Service(WebService):
    def get_pipeline_response(self, read_op):
        return Batch(name="batch", input_ops=[read_op], batch_size=4, auto_batching_timeout=1e8)


service = Service("svc")
service.prepare_pipeline_config(str(FOLDER / "config.yml"))
service.run_service()
"""


@pytest.fixture(scope="module")
def batch_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedWithClient]:
    folder = tmp_path_factory.mktemp("batch")
    served = ServedWithClient(folder, BATCH, {"op": {"batch": {"workers": "process"}}})
    try:
        yield served.wait_until_ready()
    finally:
        served.close()


def ask_four(served: ServedWithClient, *what: str) -> list[Any]:
    """Return the answers of four requests, which are one batch; reset `calls`."""
    (served.folder / "calls").unlink(missing_ok=True)
    calls = [served.send({"number": str(i), "does": does}) for i, does in enumerate(what)]
    return [call.result(PATIENCE_S) for call in calls]


def test_a_batch_runs_in_a_worker_process_in_one_call(batch_server):
    results = [answers(answer) for answer in ask_four(batch_server, "", "", "", "")]
    assert [answer["twice"] for answer in results] == ["0.0", "2.0", "4.0", "6.0"]
    assert [answer["own"] for answer in results] == ["0", "1", "2", "3"]
    assert batch_server.text("calls").split() == ["4"]
    (pid,) = {answer["pid"] for answer in results}
    assert int(pid) in batch_server.family - {batch_server.process.pid}


@pytest.mark.parametrize(
    ("bad", "first_call", "reason"),
    [
        ("raise early", "3", "raised early"),
        ("raise", "4", "raised"),
        ("segfault", "4", "SIGSEGV"),
        ("exit", "4", "exit code 3"),
    ],
)
def test_a_bad_sample_does_not_affect_others_of_its_batch(batch_server, bad, first_call, reason):
    first, second, failed, fourth = ask_four(batch_server, "", "", bad, "")
    good = [answers(answer) for answer in (first, second, fourth)]
    assert [(answer["twice"], answer["own"]) for answer in good] == [
        ("0.0", "0"),
        ("2.0", "1"),
        ("6.0", "3"),
    ]
    assert failed.err_no != 0
    assert reason in failed.err_msg
    assert batch_server.text("calls").split()[0] == first_call, "they were one batch"
    batch_server.wait_for(batch_server.is_ready)
    assert zombies_of(batch_server.family) == []
