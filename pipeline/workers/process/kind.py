"""The worker kind `process`: the parts that all process workers of a server share."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Sequence

from pipeline.engine.worker_api import WorkerContext, WorkersOwner
from pipeline.op import Op
from pipeline.workers.process.handle import ProcessContext
from pipeline.workers.process.main import WorkerMain
from pipeline.workers.process.pool import ProcessWorkers
from pipeline.workers.restart_policy import KILLED_S
from pipeline.workers.shm.arena import new_arena
from pipeline.workers.shm.server_memory import ServerMemory
from pipeline.workers.zygote.controller import Zygotes


class ProcessKind:
    """Processes that zygotes fork, with shared memory for payloads; see `WorkerKind`.

    It uses the server's zygotes and memory if there are some and each Op has a WorkerSpec;
    otherwise it has its own.
    """

    def __init__(self, ops: Sequence[Op], context: WorkerContext) -> None:
        self._ops = ops
        self._context = context

    def fork(self) -> None:
        shared = self._context.processes
        self._is_own = shared is None or any(op.pipeline_spec is None for op in self._ops)
        if shared is not None and not self._is_own:
            self._interpreter = self._ops[0].pipeline_interpreter
            self._processes: ProcessContext = shared.borrow(self._interpreter)
            return
        context, dag = self._context, self._context.config.dag
        arena = new_arena(dag.shared_memory_mib)
        entry_points = [
            WorkerMain(op, arena, context.keep_logs, context.set_up) for op in self._ops
        ]
        try:
            zygotes = Zygotes(
                entry_points,
                dag.start_method,
                pass_fds=(arena.fd,),
                runtimes=context.runtimes(self._ops),
            )
        except BaseException:
            arena.close()
            raise
        memory = ServerMemory(arena, dag.trust_workers)
        numbers = {op: number for number, op in enumerate(self._ops)}
        self._processes = ProcessContext(
            zygotes, memory, numbers, context.on_record, forgotten=memory.own_region
        )

    def attach(self, loop: asyncio.AbstractEventLoop, schedule: Callable[[], None]) -> None:
        self._loop, self._schedule = loop, schedule
        if self._is_own:
            self._processes.zygotes.attach(loop)
        else:
            self._context.processes.attach_borrowed(self._interpreter)
            forgotten = self._processes.memory.open_region()
            self._processes = dataclasses.replace(self._processes, forgotten=forgotten)

    def workers(self, op: Op, count: int, owner: WorkersOwner) -> ProcessWorkers:
        return ProcessWorkers(op, count, self._loop, self._processes, owner, self._schedule)

    async def close(self) -> None:
        if self._is_own:
            await self._processes.zygotes.close(KILLED_S)
            self._processes.memory.close()
            return
        if self._processes.forgotten:
            self._processes.memory.close_region(self._processes.forgotten)
        await self._context.processes.give_back(self._interpreter)
