"""Runs cases on real servers: threads, worker processes, shared memory, HTTP and gRPC.

`python -m fuzz.real SEED COUNT` runs them in this process and prints a line of JSON for each;
`Runner` runs them in child processes, so that a hang or a crash costs only a few cases.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import contextlib
import faulthandler
import gc
import json
import logging
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
from served import shared_memory

from fuzz import generator, ops, pacing
from fuzz.case import REQUEST, Case, RequestSpec, bulk_of
from fuzz.checker import GONE, Ending, Outlook, check_endings
from fuzz.generator import Features
from fuzz.model import bound_s
from pipeline import PipelineServer
from pipeline.data import ChannelData
from pipeline.engine.request import RequestTarget
from pipeline.errors import OverloadedError
from pipeline.proto import pipeline_service_pb2, pipeline_service_pb2_grpc
from pipeline.system.event_loop import loop_factory

_LATE_S = 3.0  # the delay that a busy machine may add
_SETTLE_S = 10.0
_MOST_SETTLE_S = 25.0
_HANG_S = 60.0  # the fuzzer kills a hanging process long before
_LAG_S = 0.25  # a machine that stops for so long causes timeouts
_PATIENCE_S = 180.0  # for one case
_CASES_OF_A_CHILD = 12
_MOST_SAID = 600  # characters of a child's last output
_ON_RAY = False


class RealWorld:
    """`ops.World` for user code in threads and processes."""

    def __init__(self) -> None:
        self.release = threading.Event()
        self._home = os.getpid()

    def __getstate__(self) -> dict[str, Any]:
        return {"_home": self._home}

    def sleep(self, seconds: float) -> None:
        if seconds:
            time.sleep(seconds)

    def hang(self, seconds: float | None) -> None:
        if os.getpid() == self._home:
            self.release.wait(_HANG_S if seconds is None else seconds)
        else:
            time.sleep(_HANG_S)

    def crash(self) -> None:
        assert os.getpid() != self._home, "only worker processes crash"
        os.kill(os.getpid(), signal.SIGKILL)


def on_ray(config: dict[str, Any]) -> dict[str, Any]:
    """Return a configuration, with actors instead of processes if `start_ray` was called."""
    for keys in config["op"].values() if _ON_RAY else ():
        if keys["workers"] == "process":
            keys |= {"workers": "ray", "ray": {"num_cpus": 0}}
    return config


class RealEngine:
    """One pipeline of a running server; requests come to all of its frontends."""

    def __init__(self, case: Case, server: PipelineServer, place: int) -> None:
        self.case = case
        self.server = server
        self.place = place
        self.name = f"fuzz{place or ''}"
        self.world = RealWorld()
        self.script = ops.Script(case, self.world)
        self.outlook = Outlook(case, self.script.board)
        self.by_name, self.response_op = ops.build(case, self.script)
        self.executor: Any = None
        self.channel: grpc.aio.Channel | None = None
        self.http_port: int | None = None

    @property
    def served(self) -> Any:
        """The graph of the server."""
        return self.server._service._graphs[self.place]

    @property
    def state(self) -> Any:
        return self.executor.state()

    async def ask(self, spec: RequestSpec) -> Ending:
        """Send a request at its time; return its ending."""
        await asyncio.sleep(spec.at_s)
        started = time.monotonic()
        task = asyncio.ensure_future(getattr(self, f"_ask_{spec.door}")(spec))
        leaving = None
        if spec.leaves_s is not None:
            leaving = asyncio.get_running_loop().call_later(spec.leaves_s, task.cancel)
        try:
            ending: Ending = await task
        except asyncio.CancelledError:
            ending = Ending(spec.number, "left")
        if leaving is not None:
            leaving.cancel()
        ending.took_s = time.monotonic() - started
        return ending

    async def _ask_engine(self, spec: RequestSpec) -> Ending:
        route, raw = None, self._raw(spec)
        if spec.alone_at:
            payload = {REQUEST: {"id": str(spec.number)}}
            route = RequestTarget(
                op=self.by_name[spec.alone_at], payload=payload, wants_response=False
            )
        try:
            answer = await self.executor.handle(raw, spec.deadline_s, route)
        except OverloadedError as error:
            return Ending(spec.number, "error", int(error.code), str(error))
        if isinstance(answer, ChannelData):
            if answer.error is not None:
                return Ending(spec.number, "error", int(answer.error.code), str(answer.error))
            return Ending(spec.number, "answer", text=answer.payload["value"])
        return _of_response(spec, answer)

    def _raw(self, spec: RequestSpec) -> Any:
        """Return a request as a message. Without a name it is for the first pipeline."""
        name = self.name if self.place else ""
        fields = {"key": ["id"], "value": [str(spec.number)], "logid": spec.log_id}
        return pipeline_service_pb2.Request(name=name, **fields)

    async def _ask_grpc(self, spec: RequestSpec) -> Ending:
        stub = pipeline_service_pb2_grpc.PipelineServiceStub(self.channel)
        metadata = []
        if spec.deadline_s is not None:
            metadata.append(("pipeline-timeout", f"{round(spec.deadline_s * 1e3)}m"))
        try:
            return _of_response(spec, await stub.inference(self._raw(spec), metadata=metadata))
        except grpc.aio.AioRpcError as error:
            is_refused = error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            code = OverloadedError.code if is_refused else error.code().value[0]
            return Ending(spec.number, "error", int(code), str(error.details()))

    async def _ask_http(self, spec: RequestSpec) -> Ending:
        body = {"key": ["id"], "value": [str(spec.number)], "logid": spec.log_id}
        try:
            data = await self._post(spec, f"/{self.name}/prediction", body)
        except (OSError, ValueError) as error:  # no connection, or no whole answer
            return Ending(spec.number, "error", GONE, repr(error))
        return _of_response(
            spec,
            pipeline_service_pb2.Response(
                err_no=data.get("err_no", 0),
                err_msg=data.get("err_msg", ""),
                key=data.get("key", ()),
                value=data.get("value", ()),
            ),
        )

    async def _ask_api(self, spec: RequestSpec) -> Ending:
        number = spec.number if self.case.has_schema else str(spec.number)
        try:
            data = await self._post(spec, f"/api/{self.name}", {"id": number})
        except (OSError, ValueError) as error:
            return Ending(spec.number, "error", GONE, repr(error))
        if "error" in data:
            return Ending(spec.number, "error", data["error"]["code"], data["error"]["message"])
        if spec.bulk and base64.b64decode(data.get("bulk", "")) != bulk_of(spec):
            return Ending(spec.number, "answer", text="another file")
        return Ending(spec.number, "answer", text=data.get("value", repr(data)))

    async def _post(self, spec: RequestSpec, path: str, fields: Any) -> Any:
        """Return the answer to a POST of JSON, or of a form with the request's file."""
        timeout = f"grpc-timeout: {round(spec.deadline_s * 1e3)}m\r\n" if spec.deadline_s else ""
        if not spec.bulk:
            kind, body = "application/json", json.dumps(fields).encode()
        else:
            kind, name = (
                "multipart/form-data; boundary=fuzz",
                "content-disposition: form-data; name",
            )
            text = "".join(f'--fuzz\r\n{name}="{key}"\r\n\r\n{fields[key]}\r\n' for key in fields)
            text += f'--fuzz\r\n{name}="bulk"; filename="bulk"\r\n\r\n'
            body = text.encode() + bulk_of(spec) + b"\r\n--fuzz--\r\n"
        return await self.http("POST", path, f"{timeout}content-type: {kind}\r\n", body)

    async def http(self, method: str, path: str, headers: str = "", body: bytes = b"") -> Any:
        """Return the body of an answer: parsed JSON, or text."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.http_port)
        try:
            head = f"{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{headers}"
            writer.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
            answer = await reader.read()
        finally:
            writer.close()
        head_of, _, content = answer.partition(b"\r\n\r\n")
        if not head_of:
            raise ConnectionResetError("the server closed the connection without an answer")
        is_json = b"application/json" in head_of
        return json.loads(content) if is_json else content.decode()

    # Afterwards ------------------------------------------------------------------------------

    async def settle(self, is_released: bool) -> None:
        """Give abandoned work time to end; then check all gauges."""
        ends = time.monotonic() + min(_MOST_SETTLE_S, _SETTLE_S + bound_s(self.case))
        while time.monotonic() < ends:
            is_stuck = is_released and any(op.workers.stuck for op in self.state.ops)
            if self.outlook.is_idle(self.state) and not is_stuck:
                break
            await asyncio.sleep(0.02)
        self.outlook.check_state(self.state, is_released)


async def check_metrics(engine: RealEngine) -> None:
    """Check that the gauges at /metrics are also at rest."""
    text = str(await engine.http("GET", "/metrics"))
    gauges = (
        "nv_inference_pending_request_count",
        "pipeline_requests{",
        "pipeline_op_requests",
    )
    lines = [line for line in text.splitlines() if line.startswith(gauges)]
    if not lines:
        engine.outlook.complain(f"no gauges at /metrics: {text[:200]}")
    for line in lines:
        if float(line.rpartition(" ")[2]):
            engine.outlook.complain(f"a gauge is not 0 after the last answer: {line}")


async def check_memory(engines: list[RealEngine]) -> None:
    """Check that no block of shared memory is in use."""
    for _ in range(100):
        gc.collect()
        blocks = objects = 0
        for engine in engines:
            kinds = engine.served._workers._by_name
            family, actors = kinds.get("process"), kinds.get("ray")
            blocks += 0 if family is None else family._processes.memory.used
            objects += 0 if actors is None else actors._shared.memory.count
        if not (blocks or objects):
            return
        await asyncio.sleep(0.02)
    engines[0].outlook.complain(f"{blocks} blocks, {objects} objects of memory are in use")


class Lag:
    """The longest delay of this process by a busy machine."""

    most_s = 0.0

    async def watch(self) -> None:
        """Measure until the task is cancelled."""
        while True:
            began = time.monotonic()
            await asyncio.sleep(0.01)
            self.most_s = max(self.most_s, time.monotonic() - began)


def _of_response(spec: RequestSpec, response: Any) -> Ending:
    if response.err_no:
        return Ending(spec.number, "error", response.err_no, response.err_msg)
    answer = dict(zip(response.key, response.value, strict=True))
    return Ending(spec.number, "answer", text=answer.get("value", repr(answer)))


# One case ---------------------------------------------------------------------------------------


def run(case: Case) -> list[str]:
    """Return the defects of the server that this case shows."""
    before, lag = _holdings(), Lag()
    server = PipelineServer("fuzz")
    engines = [RealEngine(one, server, place) for place, one in enumerate(case.pipelines)]
    server.set_response_op(engines[0].response_op)
    for engine in engines[1:]:
        server.add_pipeline(engine.name, engine.response_op)
    given = {"http_port": 0, "host": "127.0.0.1", "stop_grace_period": 200}
    server.prepare_server(yml_dict={**on_ray(ops.config(case)), **given})
    findings: list[str] = []
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        try:
            runner.run(_run(server, engines, lag))
        except Exception as error:  # of the server, or of the fuzzer itself
            findings.append(f"the server raised {error!r}")
    for engine in engines:
        engine.outlook.check_complaint()
        findings += engine.outlook.findings
    findings += _left(before)
    if lag.most_s > _LAG_S:
        findings = [finding for finding in findings if not may_be_slowness(finding)]
    return findings


async def _run(server: PipelineServer, engines: list[RealEngine], lag: Lag) -> None:
    async with server, _lag_watched(lag), _channel(server) as channel:
        for engine in engines:
            engine.executor, engine.http_port = engine.served.engine, server.http_port
            engine.channel = channel
            pacing.pace(engine.executor, engine.case)
        stops_s = engines[0].case.stops_s
        asked = [asyncio.create_task(_asked(engine)) for engine in engines]
        if stops_s is not None:
            await _stop_amidst(server, engines, stops_s)
        await asyncio.gather(*asked)
        if stops_s is None:
            for is_released in (False, True):
                await asyncio.gather(*(engine.settle(is_released) for engine in engines))
                for engine in engines:
                    engine.world.release.set()
            await check_metrics(engines[0])
            await check_memory(engines)


async def _asked(engine: RealEngine) -> None:
    """Send the requests to one pipeline, and check how they ended."""
    case = engine.case
    asked = [asyncio.ensure_future(engine.ask(spec)) for spec in case.requests]
    if not asked:
        return
    done, late = await asyncio.wait(asked, timeout=bound_s(case) + 4 * _LATE_S)
    check_endings(case, [task.result() for task in done], engine.outlook, _LATE_S)
    for task in late:
        task.cancel()
    if late:
        await asyncio.wait(late)


async def _stop_amidst(server: PipelineServer, engines: list[RealEngine], after_s: float) -> None:
    """Stop the server while it works; hanging threads return 0.5 s later."""
    await asyncio.sleep(after_s)
    for engine in engines:
        asyncio.get_running_loop().call_later(0.5, engine.world.release.set)
    await server.__aexit__()


@contextlib.asynccontextmanager
async def _channel(server: PipelineServer) -> AsyncIterator[grpc.aio.Channel]:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{server.rpc_port}") as channel:
        yield channel


@contextlib.asynccontextmanager
async def _lag_watched(lag: Lag) -> AsyncIterator[None]:
    task = asyncio.ensure_future(lag.watch())
    try:
        yield
    finally:
        task.cancel()


def may_be_slowness(finding: str) -> bool:
    """Whether a busy machine may be the reason of a finding."""
    return "code=6000" in finding or " took " in finding


def _holdings() -> dict[str, Any]:
    gc.collect()
    pid = os.getpid()
    return {
        "threads": {t.name for t in threading.enumerate() if t.name.startswith("pipeline")},
        "children": set(Path(f"/proc/self/task/{pid}/children").read_text().split()),
        "shared memory": shared_memory(),
    }


def _left(before: dict[str, Any]) -> list[str]:
    """Return what a stopped server has left: threads, children, shared memory."""
    for _ in range(150):
        after = _holdings()
        more = {name: after[name] - before[name] for name in after if after[name] - before[name]}
        if not more:
            return []
        time.sleep(0.02)
    return [f"left behind by a server that stopped: {more}"]


def _open_files(most: int) -> dict[str, str]:
    """Return the target of each descriptor; wait while gRPC's threads may close some of them."""
    for _ in range(150):
        links = {}
        for number in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):  # the descriptor of the folder itself
                links[number] = os.readlink(f"/proc/self/fd/{number}")
        if len(links) <= most:
            break
        time.sleep(0.02)
    return links


def start_ray() -> None:
    """Start one cluster on this machine for all cases of this process."""
    global _ON_RAY, _LATE_S
    import ray

    _LATE_S += 20.0  # an actor starts as a new interpreter, not as a copy of one

    _ON_RAY = True
    store = 100 * 2**20
    quiet: dict[str, Any] = {"include_dashboard": False, "log_to_driver": False}
    ray.init(address="local", num_cpus=4, object_store_memory=store, **quiet)


def main() -> int:
    """Run cases here; print a line of JSON for each."""
    parser = argparse.ArgumentParser(prog="python -m fuzz.real")
    parser.add_argument("seed", type=int)
    parser.add_argument("count", type=int)
    parser.add_argument("--step", type=int, default=1)
    parser.add_argument("--without", default="")
    parser.add_argument("--only", default="")
    parser.add_argument("--ray", action="store_true", help="actors in the place of processes")
    given = parser.parse_args()
    logging.disable(logging.CRITICAL)
    if given.ray:
        start_ray()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    features = Features(scale="real").without(*filter(None, given.without.split(",")))
    files: list[dict[str, str]] = []
    for seed in range(given.seed, given.seed + given.count * given.step, given.step):
        case = generator.generate(seed, features)
        if given.only:
            case = case.only([int(each) for each in given.only.split(",")])
        findings = run(case)
        # gRPC keeps a few descriptors after its first use.
        most = max(map(len, files[:2])) + 2 if len(files) > 1 else sys.maxsize
        files.append(_open_files(most))
        if len(files[-1]) > most:
            new = dict(files[-1].items() - files[0].items())
            findings.append(f"file descriptors grow: {[*map(len, files)]}, new: {new}")
        told = {"seed": seed, "requests": case.count, "findings": findings}
        print(json.dumps(told), flush=True)
    return 0


# Child processes -----------------------------------------------------------------------


class Runner:
    """Runs cases in child processes, a few in each; every `step`-th seed."""

    def __init__(self, step: int = 1, without: str = "", only: str = "") -> None:
        self._step = step
        self._extra = [f"--step={step}", f"--without={without}", f"--only={only}"]
        self._child: subprocess.Popen[bytes] | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._left = self._next = 0
        self._buffer = b""

    def again(self, seed: int) -> bool:
        """Run a case alone; return whether it fails."""
        self.close()
        findings = self.run(seed, 1)[1]
        self.close()
        return bool(findings)

    def run(self, seed: int, more: int = _CASES_OF_A_CHILD) -> tuple[int, list[str]]:
        """Run the case of this seed; return the number of its requests, and the findings."""
        if self._child is None or not self._left or seed != self._next:
            self.close()
            self._start(seed, more)
        self._next = seed + self._step
        self._left -= 1
        line = self._line()
        if line is None:
            return 0, [self._give_up(seed)]
        told = json.loads(line)
        assert told["seed"] == seed, (told, seed)
        return told["requests"], told["findings"]

    def _start(self, seed: int, count: int) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="fuzz-")
        self._left, self._buffer = count, b""
        command = [sys.executable, "-m", "fuzz.real", str(seed), str(count), *self._extra]
        with open(Path(self._folder.name, "stderr"), "wb") as errors:
            self._child = subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=_environment(self._folder.name),
                start_new_session=True,
            )

    def _line(self) -> bytes | None:
        """Return the next line of the child; None if it has ended or is silent for too long."""
        assert self._child is not None
        assert self._child.stdout is not None
        ends = time.monotonic() + _PATIENCE_S
        while b"\n" not in self._buffer:
            wait_s = max(0.0, ends - time.monotonic())
            ready, _, _ = select.select([self._child.stdout], [], [], wait_s)
            data = os.read(self._child.stdout.fileno(), 65536) if ready else b""
            if not data:
                return None
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line

    def _give_up(self, seed: int) -> str:
        assert self._child is not None
        assert self._folder is not None
        is_hanging = self._child.poll() is None
        if is_hanging:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._child.wait(0.5)
            is_hanging = self._child.poll() is None
        if is_hanging:
            self._child.send_signal(signal.SIGUSR1)
            time.sleep(1.0)
        errors = Path(self._folder.name, "stderr").read_text(errors="replace")
        what = "hangs" if is_hanging else f"ended with {self._child.returncode}"
        self.close()
        return f"the server's process {what} at seed {seed}: ...{errors[-_MOST_SAID:]}"

    def close(self) -> None:
        """End the child and the processes that it started."""
        child, self._child = self._child, None
        if child is not None:
            if self._left or child.poll() is None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    child.wait(10.0 if not self._left else 0.1)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
            assert child.stdout is not None
            child.stdout.close()
        self._left = 0
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None


def _environment(folder: str) -> dict[str, str]:
    """Return the environment of a child: it finds this package, and logs into `folder`."""
    ours = str(Path(__file__).parents[1])
    path = os.pathsep.join(filter(None, (ours, os.environ.get("PYTHONPATH"))))
    return {**os.environ, "SERVING_LOG_PATH": folder, "PYTHONPATH": path}


if __name__ == "__main__":
    sys.exit(main())
