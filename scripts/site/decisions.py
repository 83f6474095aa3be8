"""Draws the three decisions of docs/choosing.md: `python -m scripts.site.decisions`."""

from __future__ import annotations

from html import escape
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

DECISIONS = {
    "which_door": (
        [
            ("Scripts or clients of Paddle Serving?", "pairs: POST /NAME/prediction, gRPC"),
            ("tritonclient, KServe or perf_analyzer?", "Triton's protocol: /v2, gRPC"),
            ("An openai client, or a chat?", "OpenAI's API: /v1"),
            ("curl, a browser, a picture, a form?", "plain JSON: POST /api/NAME"),
            ("Python, with arrays or streams?", "PipelineClient over gRPC"),
        ],
        "plain JSON: POST /api/NAME",
    ),
    "which_worker": (
        [
            ("May it crash or hang?", "workers: process, with a timeout"),
            ("Does it compute in Python, over 0.5 ms?", "workers: process"),
            ("Does its library hold the GIL (Paddle)?", "workers: process"),
            ("Must it run on another machine?", "workers: ray"),
            ("Does it wait for a network or a disk?", "thread, with async def"),
        ],
        "thread (the default)",
    ),
    "which_batching": (
        [
            ("Does it make a stream step by step (LLM)?", "batching: iterative"),
            ("Is a batch as slow as its requests in turn?", "batch_size: 1 (the default)"),
            ("Preferred sizes, priorities, queue limits?", "batching: dynamic"),
            ("Few callers now, many callers later?", "batching: adaptive, with a timeout"),
            ("May a request wait for a full batch?", "batching: full, with a timeout"),
        ],
        "batching: full, no timeout",
    ),
}
"""By drawing: questions, each with the answer for "yes", and the answer when all are "no"."""

_BOX, _GAP, _HEIGHT, _STEP = 330, 70, 40, 62


def drawn(questions: list[tuple[str, str]], otherwise: str) -> str:
    """Return an SVG with the questions below each other and their answers at the right."""
    right = 10 + _BOX + _GAP
    height = 20 + _STEP * len(questions) + _HEIGHT
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{right + _BOX + 10}" height="{height}" '
        'font-family="sans-serif" font-size="14">',
        f'<rect width="{right + _BOX + 10}" height="{height}" fill="#fff"/>',
    ]
    for index, (question, answer) in enumerate(questions):
        top = 10 + index * _STEP
        middle = top + _HEIGHT // 2
        below = top + _HEIGHT
        parts += [
            *_box(10, top, question, "#e8eef9"),
            *_box(right, top, answer, "#e6f4ea"),
            *_arrow(10 + _BOX, middle, right, middle),
            f'<text x="{10 + _BOX + 22}" y="{middle - 6}" fill="#222">yes</text>',
            *_arrow(10 + _BOX // 2, below, 10 + _BOX // 2, top + _STEP),
            f'<text x="{10 + _BOX // 2 + 10}" y="{below + 16}" fill="#222">no</text>',
        ]
    parts += [*_box(10, 10 + _STEP * len(questions), otherwise, "#e6f4ea"), "</svg>", ""]
    return "\n".join(parts)


def _box(left: int, top: int, text: str, fill: str) -> list[str]:
    return [
        f'<rect x="{left}" y="{top}" width="{_BOX}" height="{_HEIGHT}" rx="6" '
        f'fill="{fill}" stroke="#567"/>',
        f'<text x="{left + _BOX // 2}" y="{top + 25}" text-anchor="middle" fill="#111">'
        f"{escape(text)}</text>",
    ]


def _arrow(x1: int, y1: int, x2: int, y2: int) -> list[str]:
    tip = (
        f"{x2 - 7},{y2 - 4} {x2 - 7},{y2 + 4}"
        if y1 == y2
        else f"{x2 - 4},{y2 - 7} {x2 + 4},{y2 - 7}"
    )
    return [
        f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" stroke="#567"/>',
        f'<polygon points="{x2},{y2} {tip}" fill="#567"/>',
    ]


def main() -> None:
    for name, decision in DECISIONS.items():
        (ROOT / "docs" / f"{name}.svg").write_text(drawn(*decision), encoding="utf-8")


if __name__ == "__main__":
    main()
