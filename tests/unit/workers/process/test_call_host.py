"""The server's end of a worker's calls: the files of a model that a model loads."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from pipeline.engine.model_calls import ModelChange, PeerCall
from pipeline.errors import ConfigError, ErrorCode
from pipeline.workers.process.call_host import CallHost
from pipeline.workers.process.calls import AnswersMessage, CallsMessage, WireCall
from pipeline.workers.process.wire import Unframer, framed
from pipeline.workers.shm.arena import Arena, RegionAllocator
from pipeline.workers.shm.payload import SerializedPayload, SharedPayload, serialize
from pipeline.workers.shm.server_memory import ServerMemory

FILES = {"1/model.py": b"#" * 100_000}


class Models:
    """Takes the changes of models."""

    def __init__(self, fails=False):
        self.fails = fails
        self.sizes = []

    def metrics(self):
        return self

    def close(self):
        pass

    async def change(self, change):
        self.sizes += [len(content) for content in change.files.values()]
        if self.fails:
            raise ConfigError("no config")
        return True


def changed(models, files=None, call=None):
    """Return the answer to a change with these files, or to a call, and their blocks."""

    async def change():
        loop = asyncio.get_running_loop()
        memory = ServerMemory(Arena(2**20))
        host = CallHost(models, memory, loop, "maker", lambda parts: None)
        region = RegionAllocator(memory.arena.view(host.region), host.region)
        sent = files or serialize(FILES, region, memory.arena)
        change = None if call else ModelChange("other", "load")
        asked = WireCall(1, feeds=sent, call=call, change=change)
        sock = host.theirs.dup()
        try:
            sock.setblocking(False)
            await loop.sock_sendall(sock, framed(CallsMessage([asked])))
            unframer = Unframer()
            while not (bodies := unframer.feed(await loop.sock_recv(sock, 2**16))):
                pass
        finally:
            sock.close()
            host.close()
            memory.close()
        return msgspec.msgpack.decode(bodies[0], type=AnswersMessage), sent.buffers

    return asyncio.run(asyncio.wait_for(change(), 10))


@pytest.mark.parametrize("fails", [False, True])
def test_the_answer_to_a_change_frees_the_files(fails):
    models = Models(fails)
    message, blocks = changed(models)
    assert models.sizes == [100_000]
    assert message.answers[0].is_ready is not fails
    assert (message.answers[0].error is not None) is fails
    assert message.freed == blocks != []


def test_files_that_cannot_be_opened_are_answered_by_the_error():
    models = Models()
    message, _ = changed(models, SerializedPayload(b"no pickle"))
    assert message.answers[0].error.code == ErrorCode.TYPE_ERROR
    assert models.sizes == []


@pytest.mark.parametrize("call", [None, PeerCall("other")])
def test_a_change_or_call_without_memory_to_open_it_is_answered(monkeypatch, call):
    def opening(payload, *args, **options):
        raise MemoryError("no memory")

    monkeypatch.setattr(SharedPayload, "open", opening)
    message, _ = changed(Models(), call=call)
    assert "MemoryError" in message.answers[0].error.text
