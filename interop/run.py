"""Asks a brpc server that none of us wrote through our predictor: a line a check, 1 on failure."""

from __future__ import annotations

import sys
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from servers import HERE, Server, build_java

from pipeline.errors import DeadlineError, PredictorError, PredictorUnavailableError
from pipeline.predictors.remote.base import RemoteModel
from pipeline.predictors.remote.brpc_channel import BrpcChannel
from pipeline.predictors.remote.general_model import GeneralModelPredictor, connect_brpc
from pipeline.predictors.remote.pool import Waiting

CONF = HERE / "serving_client_conf.prototxt"
CHECKS: list[Callable[[Bench], None]] = []


class Bench:
    """A server, and a predictor that asks it."""

    def __init__(self, command: list[str]) -> None:
        self.command = command
        self.server = Server(command)
        self.predictor = predictor_to(self.server.endpoint)

    def echo(self, name: str, value: Any, **more: Any) -> dict[str, np.ndarray]:
        return self.predictor.predict(feed_of(**{name: value}, **more), fetch=[name])

    def command_(self, text: str, **arguments: Any) -> Any:
        return self.predictor.predict(feed_of(command=[text]), fetch=["int32"], **arguments)

    def close(self) -> None:
        self.predictor.close()
        self.server.kill()


def predictor_to(*endpoints: str) -> GeneralModelPredictor:
    return connect_brpc(RemoteModel("interop", "brpc", endpoints, CONF))


def feed_of(**given: Any) -> dict[str, Any]:
    """Return all feeds of the configuration; feeds that are not given have a default."""
    feed: dict[str, Any] = {
        name: np.ones((1, 1), name)
        for name in ("float32", "int64", "int32", "float16", "uint8", "int8")
    }
    return {**feed, "text": ["-"], "command": ["echo"], **given}


def check(function: Callable[[Bench], None]) -> Callable[[Bench], None]:
    CHECKS.append(function)
    return function


def expect(error: type[Exception], text: str, call: Callable[[], Any]) -> None:
    caught = None
    try:
        answer = call()
    except error as raised:
        caught = raised
    if caught is None:
        raise AssertionError(f"{error.__name__} expected, but get {answer}")
    if text not in str(caught):
        raise AssertionError(f"{text!r} is not in {caught!r}")


@check
def every_dtype_comes_back_as_it_was(bench: Bench) -> None:
    limits = {
        "float32": [0.0, -0.0, 1.5, np.inf, -np.inf, np.nan, np.finfo(np.float32).max],
        "float16": [0.0, 1.5, np.inf, -65504.0],
        "int64": [0, 1, -1, 2**63 - 1, -(2**63)],
        "int32": [0, 1, -1, 2**31 - 1, -(2**31)],
        "uint8": [0, 1, 255],
        "int8": [0, -128, 127],
    }
    for name, values in limits.items():
        array = np.array([values, values], name)
        answer = bench.echo(name, array)[name]
        assert answer.dtype == array.dtype
        np.testing.assert_array_equal(answer, array)


@check
def text_comes_back_as_it_was(bench: Bench) -> None:
    words = ["a", "", "文字", "🙂", "line\nline", "x" * 100_000]
    answer = bench.echo("text", np.array([words], dtype=object))["text"]
    assert answer.tolist() == [words]


@check
def offsets_come_back_with_their_array(bench: Bench) -> None:
    answer = bench.echo("int64", np.arange(5).reshape(5, 1), **{"int64.lod": [0, 2, 2, 5]})
    assert answer["int64.lod"].tolist() == [0, 2, 2, 5]
    assert answer["int64"].ravel().tolist() == [0, 1, 2, 3, 4]


@check
def one_sample_gets_the_first_dimension(bench: Bench) -> None:
    feed = feed_of(float32=np.zeros(3, np.float32))
    feed = {
        name: value[0] if name not in ("float32", "text", "command") else value
        for name, value in feed.items()
    }
    assert bench.predictor.predict(feed, fetch=["float32"], batch=False)["float32"].shape == (1, 3)


@check
def a_large_tensor_comes_back(bench: Bench) -> None:
    array = np.random.default_rng(5).random((12, 1024, 1024), np.float32)  # 48 MiB
    np.testing.assert_array_equal(bench.echo("float32", array)["float32"], array)


@check
def threads_each_get_their_own_answer(bench: Bench) -> None:
    def ask(number: int) -> bool:
        array = np.full((number % 7 + 1, number % 50 + 1), number, np.int64)
        return np.array_equal(bench.echo("int64", array)["int64"], array)

    with ThreadPoolExecutor(64) as callers:
        assert all(callers.map(ask, range(5000)))


@check
def quick_answers_overtake_slow_ones(bench: Bench) -> None:
    # How many do is the server's affair: brpc-java may queue a quick request behind a slow one.
    with ThreadPoolExecutor(64) as callers:
        slow = [callers.submit(bench.command_, "sleep 500") for _ in range(20)]
        arrays = [np.array([[number]], np.int32) for number in range(200)]
        quick = [callers.submit(bench.echo, "int32", array) for array in arrays]
        assert [answer.result()["int32"].item() for answer in quick] == list(range(200))
        assert all("int32" in call.result() for call in slow)


@check
def an_error_of_the_server_is_reported(bench: Bench) -> None:
    expect(PredictorError, "no such thing", lambda: bench.command_("raise no such thing"))
    expect(PredictorError, bench.server.endpoint, lambda: bench.command_("raise no such thing"))


@check
def an_error_number_in_the_answer_is_reported(bench: Bench) -> None:
    expect(PredictorError, "error 5: as told", lambda: bench.command_("err_no 5"))


@check
def a_deadline_ends_the_call_and_the_late_answer_is_dropped(bench: Bench) -> None:
    expect(DeadlineError, "no answer from", lambda: bench.command_("sleep 300", deadline_s=0.05))
    for number in range(20):
        array = np.array([[number]], np.int32)
        assert bench.echo("int32", array)["int32"] == array
        time.sleep(0.02)


@check
def a_method_that_is_unknown_is_an_error(bench: Bench) -> None:
    host, port = bench.server.endpoint.split(":")
    channel = BrpcChannel("interop", [bench.server.endpoint], [(host, int(port))], "nothing")
    waiting = Waiting(time.monotonic() + 20.0)
    try:
        expect(PredictorError, "method=nothing", lambda: channel.ask(b"", 0, waiting, bytes))
    finally:
        channel.close()


@check
def a_server_that_ends_in_the_middle_of_a_call_and_comes_back_is_used_again(bench: Bench) -> None:
    expect(PredictorUnavailableError, "no server answers", lambda: bench.command_("exit"))
    bench.server.kill()
    expect(PredictorUnavailableError, "refused", lambda: bench.command_("echo"))
    bench.server = Server(bench.command, bench.server.port)
    assert bench.command_("echo")


@check
def of_two_servers_one_may_be_killed_under_load(bench: Bench) -> None:
    second = Server(bench.command)
    predictor = predictor_to(bench.server.endpoint, second.endpoint)
    try:
        with ThreadPoolExecutor(16) as callers:
            answers = [callers.submit(predictor.predict, feed_of()) for _ in range(3000)]
            answers[500].result()
            second.kill()
            assert all("text" in answer.result() for answer in answers)
    finally:
        predictor.close()
        second.kill()


def failures(bench: Bench) -> int:
    """Run the checks; return the number of failures."""
    count = 0
    for function in CHECKS:
        name = function.__name__.replace("_", " ")
        try:
            function(bench)
        except Exception:  # whatever a check raises, the others are run
            count += 1
            print(f"brpc-java: FAILED {name}\n{traceback.format_exc()}", flush=True)
        else:
            print(f"brpc-java: ok {name}", flush=True)
    return count


def main() -> int:
    print("brpc-java: building", flush=True)
    bench = Bench(build_java())
    try:
        count = failures(bench)
    finally:
        bench.close()
    print(f"{count} of {len(CHECKS)} failed" if count else f"all {len(CHECKS)} checks are well")
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main())
