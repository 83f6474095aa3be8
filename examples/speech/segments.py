"""From samples to frames for the model, and from its scores to segments of speech."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

FRAME = 512  # samples that have a score: 32 ms
CONTEXT = 64  # samples before them that the model hears as well
SPEECH, SILENCE = 0.5, 0.35  # a segment begins with the one score, and goes on above the other
SHORTEST = 8  # frames of speech, and of silence: what is shorter is none
MARGIN = 1  # frames before and behind a segment that belong to it
Array = np.ndarray


def frames_of(samples: Array) -> Array:
    """What the model is fed with, one row after the other: (n, CONTEXT + FRAME) of float32.

    Silence is put before the first frame and behind the last one.
    """
    padded = np.pad(samples, (CONTEXT, -len(samples) % FRAME))
    if len(samples) == 0:
        return np.empty((0, CONTEXT + FRAME), np.float32)
    return np.lib.stride_tricks.sliding_window_view(padded, CONTEXT + FRAME)[::FRAME]


def find_segments(scores: Iterable[float]) -> Iterator[tuple[int, int]]:
    """The first frame of each segment, and the one behind its last, as soon as it is known.

    That is SHORTEST frames behind its end: so long has the silence to be.
    """
    start, end, frames = None, 0, 0
    for frame, score in enumerate(scores):
        frames = frame + 1
        if start is None and score >= SPEECH:
            start, end = frame, frames
        elif start is not None and score >= SILENCE:
            end = frames
        elif start is not None and frames - end >= SHORTEST:
            if end - start >= SHORTEST:
                yield max(0, start - MARGIN), end + MARGIN
            start = None
    if start is not None and end - start >= SHORTEST:
        yield max(0, start - MARGIN), min(end + MARGIN, frames)
