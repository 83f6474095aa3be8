"""Zygotes on a loop that a test runs in steps."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import uvloop
from doubles import wait_until
from zygote_children import obey

from pipeline.workers.zygote.controller import Child, EntryPoint, Zygotes

KILLED = "was killed by SIGKILL (kill -9, or the system was out of memory)"
VANISHED = "vanished with its zygote"


class SteppedZygotes:
    """Zygotes on a loop that a test runs in steps; records the states of each child."""

    def __init__(
        self,
        *entry_points: EntryPoint,
        start_method: Any = "fork",
        new_loop: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop,
        reply_timeout_s: float = 60.0,
        revives: bool = False,
        preload: Sequence[str] = (),
        runtimes: Sequence[str] = (),
    ) -> None:
        self.zygotes = Zygotes(
            entry_points or (obey,),
            start_method,
            reply_timeout_s=reply_timeout_s,
            preload=preload,
            revives=revives,
            runtimes=runtimes,
        )
        self.loop = new_loop()
        self.zygotes.attach(self.loop)
        self.children: list[Child] = []
        self.states: dict[Child, list[str]] = {}

    @property
    def pids(self) -> list[int]:
        """Of the zygotes, the active one first, once all are known."""
        self.until(lambda: all(zygote.is_ready for zygote in self.zygotes._zygotes))
        return [zygote.pid or 0 for zygote in self.zygotes._zygotes]

    def start(self, main: int = 0, number: int = 0) -> Child:
        child = self.zygotes.start(main, number, self._note)
        self.states[child] = []
        self.children.append(child)
        return child

    def start_and_ask(self) -> Child:
        child = self.start()
        assert self.ask(child, "ping") == "pong"
        self.until(lambda: child.state == "running")
        return child

    def start_until_it_runs(self) -> Child:
        """A zygote whose death was not noticed yet loses what it is asked for."""
        for _ in range(5):
            child = self.start()
            self.until(lambda child=child: child.state != "starting")
            if child.state == "running":
                return child
        raise AssertionError(f"no child runs: the last {child.ending}")

    def ask(self, child: Child, question: str) -> str:
        return self.run(self._ask(child, question))

    def say(self, child: Child, text: str) -> None:
        self.run(self.loop.sock_sendall(child.sock, text.encode()))

    def hear(self, child: Child) -> bytes:
        """b"" when the child has closed its end."""
        return self.run(self.loop.sock_recv(child.sock, 4096))

    def until(self, condition: Callable[[], bool]) -> None:
        def step() -> bool:
            self.turn()
            return condition()

        wait_until(step)

    def until_ended(self, *children: Child) -> None:
        self.until(lambda: all(child.state == "ended" for child in children))

    def turn(self) -> None:
        self.run(asyncio.sleep(0))

    def run(self, work: Any) -> Any:
        return self.loop.run_until_complete(work)

    def close(self, timeout_s: float = 5.0) -> None:
        try:
            self.run(self.zygotes.close(timeout_s))
        finally:
            for child in self.children:
                child.sock.close()
            self.loop.close()

    def _note(self, child: Child) -> None:
        self.states[child].append(child.state)

    async def _ask(self, child: Child, question: str) -> str:
        await self.loop.sock_sendall(child.sock, question.encode())
        return (await self.loop.sock_recv(child.sock, 4096)).decode()
