"""RunningCalls: who is sent away when, by calls that are played."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

from doubles import on_loop

from pipeline.frontends.grpc import calls
from pipeline.frontends.grpc.calls import RunningCalls


class PlayedCall:
    """The context of a call, which must not be asked for its peer once it has ended."""

    has_ended = False

    def peer(self):
        assert not self.has_ended, "grpcio reads memory then that may be another call's"
        return "ipv4:127.0.0.1:5000"

    def add_done_callback(self, callback):
        self._callback = callback

    def end(self):
        self.has_ended = True
        self._callback(self)


def test_a_caller_is_disconnected_after_its_last_call(monkeypatch):
    sent_away = []
    monkeypatch.setattr(calls, "send_away", sent_away.append)
    running, first, second = RunningCalls(), PlayedCall(), PlayedCall()
    running.add(first)
    peer = ("127.0.0.1", 5000)
    running.send_away(SimpleNamespace(connections=lambda: [(peer, "connection")]))
    running.add(second)
    first.end()
    assert sent_away == []
    second.end()
    assert sent_away == ["connection"]


@on_loop
async def test_a_stream_that_is_stopped_reads_no_more_messages():
    async def silent():
        await asyncio.Event().wait()
        yield b""

    running = RunningCalls()
    messages = running.read(silent())  # its method writes an answer, and reads next
    running.end_streams()
    assert [message async for message in messages] == []
