"""From samples to frames for the model, and from its scores to segments of speech."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

FRAME = 512  # samples that have a score: 32 ms
CONTEXT = 64  # samples before a frame that the model also gets
SPEECH, SILENCE = 0.5, 0.35  # a segment begins at SPEECH, and continues above SILENCE
SHORTEST = 8  # frames; shorter speech and shorter silence are ignored
MARGIN = 1  # frames added before and after a segment
Array = np.ndarray


def frames_of(samples: Array) -> Array:
    """Return the model's inputs, a row for each frame: float32 (n, CONTEXT + FRAME).

    Silence is added before the first frame and after the last one.
    """
    padded = np.pad(samples, (CONTEXT, -len(samples) % FRAME))
    if len(samples) == 0:
        return np.empty((0, CONTEXT + FRAME), np.float32)
    return np.lib.stride_tricks.sliding_window_view(padded, CONTEXT + FRAME)[::FRAME]


def find_segments(scores: Iterable[float]) -> Iterator[tuple[int, int]]:
    """Yield the first frame of each segment, and the frame after its last, as soon as possible.

    That is SHORTEST frames after its end, when the silence is long enough.
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
