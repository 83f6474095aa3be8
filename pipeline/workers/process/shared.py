"""SharedProcesses: what process workers of Ops that come while a server runs are forked from."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Callable, Sequence

from pipeline.config.schema import DagConfig
from pipeline.engine.model_calls import ModelHost
from pipeline.op import Op
from pipeline.workers.process.handle import ProcessContext
from pipeline.workers.process.main import WorkerMain
from pipeline.workers.restart_policy import KILLED_S
from pipeline.workers.shm.arena import Arena
from pipeline.workers.shm.server_memory import ServerMemory
from pipeline.workers.zygote.controller import Zygotes


class SharedProcesses:
    """Zygotes and shared memory for all Ops of a server that have a WorkerSpec.

    They know none of these Ops: a worker is told with its first frame which one it is to make.

    Args:
        config: of the memory, and of how processes start.
        keep_logs: called first in each process, with what sends a log record home.
        on_record: takes such a record, in the server.
        preload: modules of ours that workers need: imported before any is forked.

    Attributes:
        models: that workers may ask; to be set before `attach`.
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

        self.models: ModelHost | None = None
        self._memory: ServerMemory | None = None
        self._zygotes: Zygotes | None = None

    @property
    def processes(self) -> ProcessContext:
        """Things that the workers have in common; there once they are attached."""
        assert self._processes is not None, "`attach` comes first"
        return self._processes

    def fork(self) -> None:
        """Fork the zygotes: before there are threads. InitError: they cannot be."""
        for name in self._preload:
            importlib.import_module(name)
        forks = self._config.start_method == "fork"
        self._zygotes, self._memory = self._make(forks)

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """Take the running loop. Zygotes that nobody has forked are fresh interpreters."""
        if self._zygotes is None or self._memory is None:
            self._zygotes, self._memory = self._make(forks=False)
        self._processes = ProcessContext(
            self._zygotes, self._memory, {}, self._on_record, self.models
        )
        self._zygotes.attach(loop)

    def _make(self, forks: bool) -> tuple[Zygotes, ServerMemory]:
        arena = Arena(self._config.shared_memory_mib * 2**20)
        main = WorkerMain(None, arena, self._keep_logs, no_predictor)
        try:
            zygotes = Zygotes(
                [main],
                "fork" if forks else "spawn",
                pass_fds=(arena.fd,),
                preload=self._preload,
                revives=True,
            )
        except BaseException:
            arena.close()
            raise
        return zygotes, ServerMemory(arena, self._config.trust_workers)

    async def close(self) -> None:
        """End what was forked, and let the memory go; all workers were stopped before."""
        if self._zygotes is not None and self._memory is not None:
            await self._zygotes.close(KILLED_S)
            self._memory.close()


def no_predictor(op: Op, number: int) -> None:
    """Give an Op no predictor: it has none."""
