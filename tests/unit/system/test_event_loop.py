"""The server's event loop: what fails on it is in the server's log."""

import asyncio
import logging

import pytest

from pipeline.system.event_loop import loop_factory


def test_a_callback_that_raises_is_logged_with_its_traceback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fails() -> None:
        raise LookupError("nobody has it")

    async def main() -> None:
        loop, Event = asyncio.get_running_loop(), asyncio.Event()
        loop.call_soon(fails)
        loop.call_soon(Event.set)
        await Event.wait()

    with (
        caplog.at_level(logging.ERROR, "pipeline"),
        asyncio.Runner(loop_factory=loop_factory()) as r,
    ):
        r.run(main())
    (record,) = caplog.records
    assert record.name.startswith("pipeline.")
    assert "fails" in record.getMessage()
    assert record.exc_info is not None
    assert isinstance(record.exc_info[1], LookupError)
