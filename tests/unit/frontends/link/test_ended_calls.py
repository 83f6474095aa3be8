"""A call of the link and its request let go of each other when one of them has ended."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from doubles import on_loop

from pipeline.engine.offload import Offload
from pipeline.frontends.link.calls import DirectCall, LinkCall, Method, StreamCall, UnaryCall
from pipeline.frontends.link.inference import InferenceCall
from pipeline.frontends.link.post import PostCall


class Begun:
    """A request, which has its call for a sink."""

    def __init__(self, sink: Any) -> None:
        self.sink = sink

    def cancel(self) -> None:
        """There is nothing else that has it."""


class Door:
    """Begins requests; whatever a kind of calls wants of whom it asks."""

    def __init__(self) -> None:
        self.begun: weakref.ref[Begun] | None = None
        self.direct = self.endpoint = self.heads = self.wire = self
        self.is_grpc, self.offload, self.name = False, None, "method"

    def begin(self, *given: Any) -> Begun:
        sink = next(item for item in reversed(given) if isinstance(item, LinkCall))
        begun = Begun(sink)
        self.begun = weakref.ref(begun)
        return begun

    def find(self, head: bytes) -> Door:
        return self

    def read(self, message: bytes) -> bytes:
        return message

    def names(self, metadata: bytes) -> tuple[()]:
        return ()

    def reply(self, *answer: Any) -> bytes:
        return b"{}"


@pytest.fixture(autouse=True)
def no_collector() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize("kind", [PostCall, DirectCall, InferenceCall])
@pytest.mark.parametrize("is_answered", [True, False])
def test_a_request_is_released_at_the_end_of_its_call(kind: Any, is_answered: bool) -> None:
    messages: list[object] = []
    peer = SimpleNamespace(loop=None, answer=lambda *a: messages.append(a), fail=lambda *a: None)
    door = Door()
    call = kind(peer, 1, -1, b"", door)
    call.begin(b"asked")
    assert door.begun is not None
    if is_answered:
        call.end(b"{}")
    else:
        assert door.begun() is not None
        call.cancel()
    assert door.begun() is None


@pytest.mark.parametrize("kind", [UnaryCall, StreamCall])
@on_loop
async def test_a_coroutine_is_released_with_its_cancelled_call(kind: Any) -> None:
    async def never(*asked: Any) -> Any:
        await asyncio.Event().wait()

    async def silent(*asked: Any) -> Any:
        await asyncio.Event().wait()
        yield b""

    method = Method("method", Offload(threads=0), silent if kind is StreamCall else never)
    peer: Any = SimpleNamespace(
        loop=asyncio.get_running_loop(),
        max_bytes=100,
        begin=lambda number: None,
        give_back=lambda *given: None,
    )
    call = kind(peer, 1, -1, b"", method)
    call.begin(b"asked")
    await asyncio.sleep(0)
    reference = weakref.ref(call._task)
    call.cancel()
    await asyncio.wait(asyncio.all_tasks() - {asyncio.current_task()})
    assert reference() is None
