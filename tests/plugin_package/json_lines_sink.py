"""A sink of a plug-in: a JSON line for each request that ended, and for each Op that it was at.

An entry point of the group `pipeline.sinks` makes `JsonLines` known by a name, under which
config.yml then has its options: `sinks: {json_lines: {path: requests.jsonl}}`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import msgspec

from pipeline.errors import InitError
from pipeline.observe import (
    PIPELINE,
    Background,
    Outcome,
    Rows,
    SinkContext,
    op_spans,
    request_records,
    wall_offset_ns,
)


class JsonLines:
    """Writes JSON lines to a file: on a thread, since the event loop must not wait for a disk."""

    class Options(msgspec.Struct, frozen=True):
        path: Annotated[str, "File that lines are added to."]

    def __init__(self, context: SinkContext, options: Options) -> None:
        try:
            self._file = Path(options.path).open("a", encoding="utf-8")  # noqa: SIM115  # on_close
        except OSError as error:
            raise InitError(f"sinks.json_lines.path: {error}") from error
        self._op_names = context.op_names
        self._thread = Background("json-lines")
        self._thread.start()
        context.on_close(self._file.close)
        context.on_close(self._thread.close)  # before the file: the last is closed first

    def notify(self, spans: Rows, requests: Rows) -> None:
        """Take in what happened since the last call, see `pipeline.observe.Sink`."""
        self._thread.submit(lambda: self._write(spans, requests))

    def _write(self, spans: Rows, requests: Rows) -> None:
        epoch_ns = wall_offset_ns()
        for span in op_spans(spans):
            self._add(
                kind="op",
                op=self._op_names[span.op],
                data_id=span.data_id,
                outcome=Outcome(span.outcome).name,
                ended_s=(span.end_ns + epoch_ns) / 1e9,
                waited_ms=(span.start_ns - span.ready_ns) / 1e6,
                process_ms=(span.process_end_ns - span.preprocess_end_ns) / 1e6,
            )
        for request in request_records(requests):
            self._add(
                kind="request",
                op=None if request.target == PIPELINE else self._op_names[request.target],
                data_id=request.data_id,
                outcome=Outcome(request.outcome).name,
                err_no=request.code,
                took_ms=(request.end_ns - request.start_ns) / 1e6,
            )
        self._file.flush()

    def _add(self, **fields: Any) -> None:
        self._file.write(f"{json.dumps(fields)}\n")
