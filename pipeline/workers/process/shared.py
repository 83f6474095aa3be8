"""SharedProcesses: the zygotes and memory for workers of Ops that are added while a server runs."""

from __future__ import annotations

import asyncio
import dataclasses
import importlib
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from pipeline.config.schema import DagConfig
from pipeline.engine.model_calls import ModelHost
from pipeline.op import Op
from pipeline.system.interpreter import Interpreter
from pipeline.workers.process.handle import ProcessContext
from pipeline.workers.process.main import WorkerMain
from pipeline.workers.restart_policy import KILLED_S
from pipeline.workers.shm.arena import new_arena
from pipeline.workers.shm.server_memory import ServerMemory
from pipeline.workers.zygote.controller import Zygotes


class SharedProcesses:
    """Zygotes and shared memory for all Ops of a server that have a WorkerSpec.

    The zygotes do not know these Ops: the first message to a worker describes its Op.

    Args:
        config: of the memory, and of how processes start.
        keep_logs: called first in each process, with a function that sends log records to the
            server.
        on_record: takes such a record, in the server.
        preload: modules of this library that workers need: imported before the first fork.

    Attributes:
        models: the models that workers may call; set before `attach`.
    """

    def __init__(
        self,
        config: DagConfig,
        keep_logs: Callable[[Callable[[bytes], None]], None],
        on_record: Callable[[bytes], None],
        preload: Sequence[str] = (),
    ) -> None:
        self._config = config
        self._keep_logs = keep_logs
        self._on_record = on_record
        self._preload = preload
        self._processes: ProcessContext | None = None
        self._elsewhere: dict[Interpreter, _BorrowedZygotes] = {}
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self.models: ModelHost | None = None
        self._memory: ServerMemory | None = None
        self._zygotes: Zygotes | None = None

    @property
    def processes(self) -> ProcessContext:
        """Return the services that the workers share; available after `attach`."""
        assert self._processes is not None, "`attach` comes first"
        return self._processes

    def fork(self) -> None:
        """Fork the zygotes, before there are threads. InitError: that is impossible."""
        for name in self._preload:
            importlib.import_module(name)
        forks = self._config.start_method == "fork"
        self._zygotes, self._memory = self._make(forks)

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """Take the running loop. Zygotes that were not forked are fresh interpreters."""
        if self._zygotes is None or self._memory is None:
            self._zygotes, self._memory = self._make(forks=False)
        self._processes = ProcessContext(
            self._zygotes, self._memory, {}, self._on_record, self.models
        )
        self._zygotes.attach(loop)
        self._loop = loop

    def borrow(self, interpreter: Interpreter | None) -> ProcessContext:
        """Return the same for workers of another interpreter; see `give_back`.

        Ops with the same interpreter share its zygotes. Callable in any thread.

        Raises:
            InitError: it cannot be started.
        """
        if interpreter is None:
            return self.processes
        with self._lock:
            if interpreter not in self._elsewhere:
                memory = self.processes.memory
                main = WorkerMain(None, memory.arena, self._keep_logs, no_predictor)
                zygotes = self._new_zygotes(main, "spawn", interpreter)
                context = dataclasses.replace(self.processes, zygotes=zygotes)
                self._elsewhere[interpreter] = _BorrowedZygotes(context)
            borrowed = self._elsewhere[interpreter]
            borrowed.borrowers += 1
            return borrowed.context

    def attach_borrowed(self, interpreter: Interpreter | None) -> None:
        """Read the reports of borrowed zygotes on the running loop."""
        borrowed = self._elsewhere.get(interpreter) if interpreter is not None else None
        if borrowed is not None and not borrowed.is_attached and self._loop is not None:
            borrowed.is_attached = True
            borrowed.context.zygotes.attach(self._loop)

    async def give_back(self, interpreter: Interpreter | None) -> None:
        """End zygotes that have no borrower left."""
        if interpreter is None or interpreter not in self._elsewhere:
            return
        with self._lock:
            borrowed = self._elsewhere[interpreter]
            borrowed.borrowers -= 1
            if borrowed.borrowers:
                return
            del self._elsewhere[interpreter]
        await borrowed.context.zygotes.close(KILLED_S)

    def _make(self, forks: bool) -> tuple[Zygotes, ServerMemory]:
        arena = new_arena(self._config.shared_memory_mib)
        main = WorkerMain(None, arena, self._keep_logs, no_predictor)
        try:
            zygotes = self._new_zygotes(main, "fork" if forks else "spawn")
        except BaseException:
            arena.close()
            raise
        return zygotes, ServerMemory(arena, self._config.trust_workers)

    def _new_zygotes(
        self,
        main: WorkerMain,
        start_method: Literal["fork", "spawn"],
        interpreter: Interpreter | None = None,
    ) -> Zygotes:
        return Zygotes(
            [main],
            start_method,
            pass_fds=(main.arena.fd,),
            preload=self._preload,
            revives=True,
            interpreter=interpreter,
        )

    async def close(self) -> None:
        """End the zygotes, and free the memory; all workers were stopped before."""
        for elsewhere in self._elsewhere.values():
            await elsewhere.context.zygotes.close(KILLED_S)
        self._elsewhere.clear()
        if self._zygotes is not None and self._memory is not None:
            await self._zygotes.close(KILLED_S)
            self._memory.close()


@dataclass(slots=True)
class _BorrowedZygotes:
    """Zygotes of another interpreter, and the number of models with workers of them."""

    context: ProcessContext
    borrowers: int = 0
    is_attached: bool = False


def no_predictor(op: Op, number: int) -> None:
    """Do nothing: these Ops have no predictor."""
