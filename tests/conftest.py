"""Fixtures for all tests."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import hypothesis
import pytest
from doubles import Holds, chain, client_of, server_for, wait_until
from garbage import collect
from paths import TESTS
from served import children, no_leftovers

from pipeline.config import registry
from pipeline.engine import request
from pipeline.runtime.replicas import grpc_is_used

pytest_plugins = ["dropin_fixtures", "gateway_fixtures", "zygote_fixtures"]

# No test asserts a time, not even by accident: the machines are shared.
hypothesis.settings.register_profile(  # nothing that a busy machine decides
    "pipeline", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("pipeline")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark each test with its folder (unit, integration, conformance, e2e); quick ones come last.

    So no process of pytest-xdist is left alone with a long file at the end.
    """
    for item in items:
        item.add_marker(item.path.relative_to(TESTS).parts[0])
    items.sort(key=lambda item: "unit" in item.keywords)


def pytest_collection_finish() -> None:
    collect()


def _files() -> int:
    return len(os.listdir("/proc/self/fd"))


def _threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("pipeline")}


@pytest.fixture(autouse=True)
def no_resources_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """A test leaves no thread of the library, no child process and no shared memory."""
    threads = _threads()
    # A unit test starts no process, and to look for shared memory costs more than most of them.
    with nullcontext() if "unit" in request.keywords else no_leftovers():
        yield
        if _threads() - threads:
            wait_until(lambda: not (_threads() - threads))


@pytest.fixture(autouse=True)
def no_registrations_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """A registration ends with the test that makes it."""
    monkeypatch.setattr(registry, "_registered", dict(registry._registered))


@pytest.fixture(scope="module", autouse=True)
def no_process_outlives_a_module() -> Iterator[None]:
    """The tests of a module together leave no process and no shared memory."""
    with no_leftovers():
        yield
    assert children() == set()


@pytest.fixture(autouse=True)
def illegal_steps_raise(monkeypatch: pytest.MonkeyPatch) -> None:
    """An illegal step of a request fails the test; a server logs it."""

    def illegal(state: request.RequestState, phase: request.Phase) -> None:
        raise AssertionError(f"from {state.phase!r} to {phase!r}")

    monkeypatch.setattr(request, "report_illegal_step", illegal)


@pytest.fixture(scope="session")
def grpc_is_up(tmp_path_factory: pytest.TempPathFactory) -> None:
    """gRPC has opened the few descriptors that it keeps from its first use."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SERVING_LOG_PATH", str(tmp_path_factory.mktemp("logs")))
        _use_grpc()


def _use_grpc() -> None:
    with server_for(chain("a")) as server, client_of(server) as client:
        client.predict({})


@pytest.fixture
def holds() -> Iterator[Holds]:
    """An Op that holds its requests until the test ends."""
    op = Holds()
    yield op
    op.release.set()


@pytest.fixture
def open_files(grpc_is_up: None) -> Iterator[None]:
    """No file descriptor is lost; for tests that start servers in this process."""
    collect()
    before = _files()
    yield
    collect()
    wait_until(lambda: _files() <= before)


@pytest.fixture
def grpc_rests(open_files: None) -> None:
    """The gRPC of earlier tests has ended: a forked child could not use its own otherwise."""
    collect()
    wait_until(lambda: not grpc_is_used())


@pytest.fixture(scope="module")
def module_logs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Servers that the tests of a module share write their logs into one folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SERVING_LOG_PATH", str(tmp_path_factory.mktemp("logs")))
        yield


@pytest.fixture(autouse=True)
def logs_in_tmp(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers of a test write their logs beside its other files; few unit tests have any."""
    is_needed = "unit" not in request.keywords or "tmp_path" in request.fixturenames
    folder = request.getfixturevalue("tmp_path" if is_needed else "unit_logs")
    monkeypatch.setenv("SERVING_LOG_PATH", str(folder))


@pytest.fixture(scope="session")
def unit_logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the logs of unit tests that have no other files."""
    return tmp_path_factory.mktemp("logs")
