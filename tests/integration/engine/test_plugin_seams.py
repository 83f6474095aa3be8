"""A scheduler and a worker kind that a package brings: config.yml names them, with options."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import plugins
import pytest
from doubles import server_for

from pipeline import AsyncPipelineClient, Op, PipelineServer, RequestOp
from pipeline.config import registry
from pipeline.config.schema import load_config
from pipeline.errors import ConfigError


@pytest.fixture(autouse=True)
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for path in plugins.install(tmp_path):
        monkeypatch.syspath_prepend(path)
    registry._plug_ins.cache_clear()
    yield
    registry._plug_ins.cache_clear()


class WorkerName(Op):
    """Answers with who ran it."""

    def preprocess(self, input_dicts: Any, data_id: int, log_id: int) -> tuple[Any, ...]:
        thread = threading.current_thread().name
        is_process = self.concurrency_idx is not None
        worker = str(self.concurrency_idx) if is_process else thread.rpartition("-")[2]
        return {"worker": worker, "thread": thread}, False, None, ""


async def responses_of(server: PipelineServer, times: int) -> list[dict[str, str]]:
    async with AsyncPipelineClient() as client:
        client.connect([f"127.0.0.1:{server.rpc_port}"])
        responses = await asyncio.gather(*(client.predict({"x": "1"}) for _ in range(times)))
    assert [response.err_no for response in responses] == [0] * times
    return [dict(zip(response.key, response.value, strict=True)) for response in responses]


@pytest.mark.parametrize("workers", ["thread", "process"])
@pytest.mark.parametrize("number", [0, 2])
def test_a_scheduler_that_names_a_worker_is_obeyed(workers, number):
    op = {"workers": workers, "concurrency": 3, "batching": "pinned", "pinned_to": number}
    with server_for(WorkerName("who", input_ops=[RequestOp()]), op={"who": op}) as server:
        answers = asyncio.run(responses_of(server, 20))
    assert {answer["worker"] for answer in answers} == {str(number)}


def test_a_request_for_a_missing_worker_runs_at_any_worker():
    op = {"concurrency": 2, "batching": "pinned", "pinned_to": 7}
    with server_for(WorkerName("who", input_ops=[RequestOp()]), op={"who": op}) as server:
        answers = asyncio.run(responses_of(server, 20))
    assert {answer["worker"] for answer in answers} <= {"0", "1"}


@pytest.mark.parametrize("batching", ["full", "pinned"])
def test_a_worker_kind_from_outside_runs_an_op(batching):
    op = {"workers": "inline", "at_once": 2, "batching": batching}
    with server_for(WorkerName("who", input_ops=[RequestOp()]), op={"who": op}) as server:
        answers = asyncio.run(responses_of(server, 20))
        assert [state.workers.kind for state in server._service.engine.state().ops] == ["inline"]
    assert not any(answer["thread"].startswith("pipeline-who") for answer in answers)


def test_an_op_of_each_kind_are_one_graph():
    read = RequestOp()
    first = WorkerName("first", input_ops=[read])
    second = WorkerName("second", input_ops=[first])
    ops = {"first": {"workers": "inline"}, "second": {"workers": "process"}}
    with server_for(WorkerName("third", input_ops=[second]), op=ops) as server:
        answers = asyncio.run(responses_of(server, 5))
    assert {answer["thread"] for answer in answers} == {"pipeline-third-0"}


def test_their_options_are_checked():
    with pytest.raises(ConfigError, match=r"at_once: expected int >= 1, found 0"):
        load_config(yml_dict={"rpc_port": 0, "op": {"a": {"workers": "inline", "at_once": 0}}})
    with pytest.raises(ConfigError, match=r"pinned_to: expected int >= 0, found -1"):
        load_config(yml_dict={"rpc_port": 0, "op": {"a": {"batching": "pinned", "pinned_to": -1}}})
