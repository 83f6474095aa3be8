"""A frontend of a plug-in: lines over TCP. Each is a request, and its answer a line.

An entry point of the group `pipeline.frontends` makes `LineFrontend` known by a name, under which
config.yml then has its options: `frontends: {lines: {port: 0}}`.
"""

from __future__ import annotations

import asyncio
from typing import Annotated

from msgspec import Meta, Struct

from pipeline.engine.request import ask
from pipeline.frontends.base import FrontendContext
from pipeline.frontends.listen import bind, port_of
from pipeline.proto.pipeline_service_pb2 import Request


class LineFrontend:
    """Answers each line that it is sent by the pipeline's answer to `{"line": ...}`."""

    class Options(Struct, frozen=True, kw_only=True):
        port: Annotated[int, Meta(ge=0), "TCP port; 0: any free one."] = 0
        end: Annotated[str, "Sent behind each answer."] = ""

    def __init__(self, context: FrontendContext, options: Options) -> None:
        self.port = options.port
        self._end = options.end
        self._begin = context.engine.begin
        self._server: asyncio.Server | None = None

    async def start(self, is_ready: bool = False) -> None:
        listener = bind("127.0.0.1", self.port, "frontends.lines.port")
        self.port = port_of(listener)
        self._server = await asyncio.start_server(self._serve, sock=listener)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := (await reader.readline()).decode().rstrip("\n"):
            answer = await ask(self._begin, Request(key=["line"], value=[line]))
            said = answer.value[0] if not answer.err_no else answer.err_msg
            writer.write(f"{said}{self._end}\n".encode())
        writer.close()

    async def set_ready(self, ready: bool) -> None:
        """Nobody asks."""

    async def drain(self) -> None:
        """Keep the callers until they leave, or the server stops."""

    async def close(self, grace_s: float) -> None:
        if self._server is not None:
            self._server.close()

    async def stop(self, grace_s: float) -> None:
        await self.close(grace_s)
