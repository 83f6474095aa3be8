"""ProfileWriter: writes PROFILE lines of what happens to stderr, of a sample if that is much."""

from __future__ import annotations

import itertools
import logging
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TextIO

import numpy as np

from pipeline.engine.journal.journal import REQUEST, SPAN, Rows, wall_offset_ns
from pipeline.observe.analysis.sampling import NO_LOADS, SampledRows, Sampler
from pipeline.observe.background import Background
from pipeline.observe.open_streams import NO_STREAMS, OpenStreams
from pipeline.observe.paddle.profile import load_lines, profile_lines, stream_lines
from pipeline.observe.sink import SinkContext
from pipeline.system.stdio import write_out

_LOGGER = logging.getLogger(__name__)

_PIECE_CHARS = 4096  # what a pipe takes at once: lines of several processes are not mixed
_PIECES_LIMIT = 64  # flushes that may wait for whoever reads stderr


class ProfileWriter:
    """A Sink that writes lines to stderr, or to `stream`: `dag.use_profile`.

    Rows are chosen on the event loop, and forgotten unless they are to be written. Formatting and
    writing are done by a thread: whoever reads stderr may be slow. `per_s` and `id_step` are the
    Sampler's; 0: all requests are written.
    """

    def __init__(
        self, names: Sequence[str], per_s: int = 0, id_step: int = 1, stream: TextIO | None = None
    ) -> None:
        self._names = list(names)
        self._stream = stream
        self._sampler = Sampler(per_s, id_step) if per_s else None
        self._streams = OpenStreams()
        self._background = Background("profile", _PIECES_LIMIT)
        self._is_broken = False

    def start(self) -> None:
        self._background.start()

    def close(self) -> None:
        """Write what was taken in, end the thread. May be called again."""
        if self._sampler is not None and (loads := self._sampler.end()).size:
            nothing = np.empty(0, SPAN), np.empty(0, REQUEST)
            self._submit(SampledRows(*nothing, None, loads), NO_STREAMS)
        self._background.close()

    def notify(self, spans: Rows, requests: Rows) -> None:
        if self._sampler is None:
            chosen, strides = SampledRows(spans, requests, None, NO_LOADS), None
        else:
            chosen = self._sampler.choose(spans, requests)
            strides = None if chosen.strides is None else chosen.strides.requests.tolist()
        self._submit(chosen, self._streams.take(requests, chosen.requests, strides))

    def notify_parts(self, parts: Rows) -> None:
        """Note parts of streams; they are told of when their requests are."""
        self._streams.note(parts)

    def _submit(self, chosen: SampledRows, streams: Rows) -> None:
        if chosen.spans.size or chosen.requests.size or chosen.loads.size:
            offset_ns = wall_offset_ns()
            self._background.submit(lambda: self._write(chosen, streams, offset_ns))

    def _write(self, chosen: SampledRows, streams: Rows, offset_ns: int) -> None:
        stream: Any = sys.stderr if self._stream is None else self._stream
        if self._is_broken or stream is None:
            return
        lines = itertools.chain(
            profile_lines(chosen.spans, chosen.requests, self._names, offset_ns, chosen.strides),
            stream_lines(streams, self._names, offset_ns),
            load_lines(chosen.loads, offset_ns),
        )
        try:
            for piece in _pieces(lines):
                write_out(stream, piece)
        except (OSError, ValueError) as error:  # ValueError: the stream was closed
            self._is_broken = True
            _LOGGER.error("dag.use_profile: no more PROFILE lines, stderr failed: %s", error)


def open_profile(context: SinkContext, options: None) -> ProfileWriter:
    config = context.config
    id_step = 1 if context.replica is None else config.replicas
    writer = ProfileWriter(context.op_names, config.dag.profile_per_s, id_step)
    writer.start()
    context.on_close(writer.close)
    return writer


def _pieces(lines: Iterable[str]) -> Iterator[str]:
    """Yield the lines in pieces that are written at once."""
    piece = ""
    for line in lines:
        if piece and len(piece) + len(line) > _PIECE_CHARS:
            yield piece
            piece = ""
        piece += line
    if piece:
        yield piece
