"""Filters: in which order they see a request, and what they may do with it."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
from doubles import Engine, answers, chain, run_virtual, virtual

from pipeline import Filter
from pipeline.engine.filters import FilterChain, NameCheck, configured
from pipeline.engine.journal.journal import Outcome
from pipeline.errors import ConfigError, InitError, OverloadedError, ProductError
from pipeline.proto.pipeline_service_pb2 import Request

HOOKS = ("on_request", "on_admission", "on_input", "on_error", "on_answer", "on_end")


class Recorder(Filter):
    """Takes down which of its hooks are called."""

    def __init__(self, name: str, seen: list[str]) -> None:
        self._name = name
        self._seen = seen

    def _saw(self, hook: str) -> None:
        self._seen.append(f"{self._name}.{hook}")

    def on_request(self, request):
        self._saw("on_request")

    def on_admission(self, request):
        self._saw("on_admission")

    def on_input(self, request, payload):
        self._saw(f"on_input({payload})")

    def on_error(self, request, error):
        self._saw(f"on_error({error})")
        return False

    def on_answer(self, request, answer):
        self._saw("on_answer")
        return answer

    def on_end(self, request):
        self._saw(f"on_end({Outcome(request.outcome).name})")


def engine_with(*filters: Filter, last_op: Any = None, **more: Any) -> Engine:
    """An engine whose filters are these, and its own."""
    engine = Engine(last_op or chain("a"), **more)
    executor = engine.executor
    executor._filters = FilterChain(executor._own_filters(engine._settings), filters)
    return engine


def test_only_overridden_hooks_are_called():
    result = FilterChain([Filter()], [Filter(), NameCheck("svc")])
    assert [len(getattr(result, hook)) for hook in HOOKS] == [1, 0, 0, 0, 0, 0]


@virtual
async def test_filters_see_a_request_from_outside_to_inside_and_its_answer_back():
    seen: list[str] = []
    async with engine_with(Recorder("1", seen), Recorder("2", seen)) as engine:
        assert answers(await engine.ask(path="x")) == {"path": "x>a"}
    assert seen == [
        "1.on_request",
        "2.on_request",
        "1.on_admission",
        "2.on_admission",
        "1.on_input({'path': 'x'})",
        "2.on_input({'path': 'x'})",
        "2.on_answer",
        "1.on_answer",
        "1.on_end(OK)",
        "2.on_end(OK)",
    ]


@virtual
async def test_filters_are_notified_of_failures_and_cancellations():
    seen: list[str] = []
    async with engine_with(Recorder("f", seen), service_s={"a": None}) as engine:
        answer = engine.ask(path="x")
        await asyncio.sleep(0)
        answer.cancel()
        await asyncio.wait([answer])
        assert seen[3:] == ["f.on_end(CANCELED)"]
        seen.clear()
        expired = await engine.ask(0.5, path="y")
        assert expired.err_no != 0
        assert seen[3:] == ["f.on_answer", "f.on_end(REJECTED)"]


class Refuses(Filter):
    def __init__(self, error: Exception) -> None:
        self._error = error

    def on_request(self, request):
        raise self._error


@virtual
async def test_a_filter_refuses_with_its_own_error():
    async with engine_with(Refuses(ProductError(77, "no token"))) as engine:
        answer = await engine.ask(path="x")
        assert (answer.err_no, answer.err_msg) == (77, "no token")
        assert engine.executor.state().accepted == 0


@virtual
async def test_a_filter_sends_callers_away_for_a_while():
    async with engine_with(Refuses(OverloadedError("your quota", 5))) as engine:
        with pytest.raises(OverloadedError, match="your quota"):
            await engine.ask(path="x")


def test_a_filter_that_raises_before_admission_refuses_the_request(caplog):
    async def main():
        async with engine_with(Refuses(KeyError("token"))) as engine:
            answer = await engine.ask(path="x")
            assert "a filter failed: KeyError" in answer.err_msg
            assert engine.executor.state().accepted == 0

    with caplog.at_level(logging.ERROR):
        run_virtual(main())
    assert "a filter failed" in caplog.text


class Broken(Filter):
    def on_admission(self, request):
        raise RuntimeError("admission")

    def on_input(self, request, payload):
        raise RuntimeError("input")

    def on_answer(self, request, answer):
        raise RuntimeError("answer")

    def on_end(self, request):
        raise RuntimeError("end")


def test_a_filter_that_raises_later_does_not_affect_requests(caplog):
    async def main():
        async with engine_with(Broken()) as engine:
            assert answers(await engine.ask(path="x")) == {"path": "x>a"}
            assert engine.executor.inside == 0

    with caplog.at_level(logging.ERROR):
        run_virtual(main())
    for hook in ("on_admission", "on_input", "on_answer", "on_end"):
        assert f"Broken.{hook} failed" in caplog.text


class Forgetful(Filter):
    def on_answer(self, request, answer):
        answer.value[:] = [text.upper() for text in answer.value]


def test_a_filter_that_returns_no_answer_is_ignored_and_logged(caplog):
    async def main():
        async with engine_with(Forgetful()) as engine:
            assert answers(await engine.ask(path="x")) == {"path": "X>A"}

    with caplog.at_level(logging.ERROR):
        run_virtual(main())
    assert "Forgetful.on_answer returned None: the answer does not change" in caplog.text


class Replaces(Filter):
    def on_answer(self, request, answer):
        answer.value[:] = [text.upper() for text in answer.value]
        return answer


@virtual
async def test_a_filter_changes_an_answer():
    async with engine_with(Replaces()) as engine:
        assert answers(await engine.ask(path="x")) == {"path": "X>A"}


@virtual
async def test_a_request_for_another_service_is_refused():
    async with engine_with(NameCheck("svc")) as engine:
        for name in ("", "svc"):
            request = Request(name=name, key=["path"], value=["x"])
            assert answers(await engine.executor.handle(request)) == {"path": "x>a"}
        answer = await engine.executor.handle(Request(name="other"))
        assert "This server is 'svc', the request names 'other'." in answer.err_msg


def test_a_factory_without_a_filter_is_a_configuration_error(monkeypatch):
    monkeypatch.setattr("pipeline.engine.filters.find", lambda kind, name: lambda options: 7)
    with pytest.raises(ConfigError, match="filters: seven: expected a Filter, found int"):
        configured({"seven": None})


def test_an_error_of_a_filters_factory_names_the_filter(monkeypatch):
    def without_its_file(options):
        raise OSError("no quotas")

    monkeypatch.setattr("pipeline.engine.filters.find", lambda kind, name: without_its_file)
    with pytest.raises(InitError, match=r"filters\.quota: it cannot be made: OSError: no quotas"):
        configured({"quota": None})


class Misspelt(Filter):
    def on_requests(self, request):
        """Nobody calls this."""


def test_a_misspelt_hook_of_a_filter_is_a_warning(monkeypatch, caplog):
    monkeypatch.setattr("pipeline.engine.filters.find", lambda kind, name: Misspelt)
    configured({"mine": None})
    assert caplog.messages == ["filters.mine: on_requests is not a hook; did you mean on_request?"]
