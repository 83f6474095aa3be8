"""The log of a server's start."""

from __future__ import annotations

import asyncio
import re

import pytest
from doubles import Engine, ScriptedWorkers, chain, run_virtual, virtual

from pipeline.system.startup_log import STARTUP, log_if_slow, who_ended, who_loads


@pytest.fixture
def logged_lines(caplog):
    """Return the logged lines of the start."""
    caplog.set_level("INFO", STARTUP)
    return lambda: [re.sub(r"\d\d:\d\d:\d\d", "now", text) for text in caplog.messages]


async def sleeps(seconds, result=None):
    await asyncio.sleep(seconds)
    if isinstance(result, Exception):
        raise result
    return result


def started(work):
    async def main():
        return await log_if_slow("Op 'a'", work, asyncio.get_running_loop())

    return run_virtual(main())


def test_a_quick_start_is_not_logged(logged_lines):
    assert started(sleeps(0.9, 7)) == 7
    assert logged_lines() == []


def test_a_start_of_more_than_a_second_is_logged_at_begin_and_end(logged_lines):
    assert started(sleeps(12.34, 7)) == 7
    assert logged_lines() == ["Op 'a': loading since now", "Op 'a': ready after 12.3 s"]


def test_a_failed_start_is_logged_as_ended(logged_lines):
    with pytest.raises(ValueError, match="broken"):
        started(sleeps(2, ValueError("broken")))
    assert logged_lines() == ["Op 'a': loading since now", "Op 'a': not ready after 2.0 s"]


def test_names_are_parsed_from_the_logged_lines(logged_lines):
    started(sleeps(2))
    loading, ready = logged_lines()
    assert (who_loads(loading), who_ended(loading)) == ("Op 'a'", "")
    assert (who_loads(ready), who_ended(ready)) == ("", "Op 'a'")


@virtual
async def test_many_slow_ops_are_logged_together(logged_lines, monkeypatch):
    async def start(self):
        await asyncio.sleep(2.0 if self.op.name != "op7" else 3.0)

    monkeypatch.setattr(ScriptedWorkers, "start", start)
    async with Engine(chain(*(f"op{index}" for index in range(40)))):
        pass
    first, last = logged_lines()
    assert who_loads(first) == who_ended(last)
    assert re.fullmatch(r"Op '\w+', Op '\w+' and \d\d more: loading since now", first)
    assert last.endswith(": ready after 3.0 s")


@virtual
async def test_each_slow_op_is_logged(logged_lines, monkeypatch):
    times = {"a": 3.0, "b": 0.5, "c": 2.0}

    async def start(self):
        await asyncio.sleep(times.get(self.op.name, 0.0))

    monkeypatch.setattr(ScriptedWorkers, "start", start)
    async with Engine(chain("a", "b", "c")):
        pass
    assert logged_lines() == [
        "Op 'a': loading since now",
        "Op 'c': loading since now",
        "Op 'c': ready after 2.0 s",
        "Op 'a': ready after 3.0 s",
    ]
