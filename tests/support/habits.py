"""Finds habits of writing that are hard for a reader with English as a second language.

`python -m habits [PATH ...]` (with `tests/support` on PYTHONPATH) lists the hits below these paths,
or all hits, each with the words to write instead.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from paths import ROOT

HABITS = {
    r"(?<!there )\b(?:is|are|was|were|be) none\b": "is not a ..., are fake ..., does not exist",
    r"(?<!there )\b(?:is|was|be) no (?!longer|more than|less than)[a-z]": "is not a ...",
    r"(?<!there )\bare no (?!longer|more than|less than)[a-z]": "are not ...",
    r"\bnone of (?:ours|its|theirs|yours)\b": "not one of our ...",
    r"\bnone that\b": "no ... that",
    r"\bwho(?:m|se)?ever\b": "the client, the process ... that",
    r"\bof (?:ours|theirs|yours)\b": "our ..., their ..., your ...",
    r"\bbe (?:it|they)\b": "whether it is",
    r"\bthose (?:that|who|which|whose)\b": "the requests, the Ops ... that",
    r"(?:^|[.;:] )Who (?:is|has|was|will|can|may|[a-z]+s)\b(?![^.]*\?)": "A client that ...",
    r"(?:^|[.;:] )What (?:is|has|was|will|can|may|does|[a-z]+s|came)\b(?![^.]*\?)": "A value that",
    r", too\b(?! )": "also, before the verb",
    r", at (?:the )?(?:most|least)\b(?=[.,;:)]|$)": "at most N ..., before the number",
    r"\bat the (?:most|least)\b": "at most, at least",
    r"\b(?:goes|go|went|gone) on\b": "continues",
    r"\b(?:is|are|was|were|be|been) told\b": "receives, is notified of",
    r"\bto be had\b": "available",
    r"\ball that\b": "everything that, or name the things",
    r"\bsuch as (?:it|they)\b": "delete",
    r"\bas (?:it|they) (?:is|are|was|were)(?= ?[.,;:)]|$)": "unchanged, as before",
    r"\bha(?:s|ve|d) (?:its|their) say\b": "name what it decides",
    r"\b(?:come|comes|came|coming) home\b": "returns",
    r"\bby then\b": "before ..., when ...",
    r"\bnobody's\b": "of no request, unused",
    r"\bgone with it\b": "removed together",
    r"\ba while\b": "for some time, or say how long",
    r"\b(?:stands|stand|stood) (?:beside|behind|before)\b": "is next to, follows, precedes",
    r"\bin one go\b": "at once, without a pause",
    r"\bas ever\b": "as before",
    r"\banew\b": "again, re-...",
    r"\bfor ever\b": "forever",
    r"\bin no time\b": "quickly",
    r"\bfor good\b": "permanently",
    r"\bin vain\b": "without effect",
    r"\band the like\b": "and similar ...",
    r", say[,:]": "for example",
    r"\bor else\b": "otherwise",
    r"\bdear(?:er|est)?\b": "expensive",
    r"\b(?:there|where|here)(?:of|in|unto|upon)\b|\bwhence\b|\bwhither\b|\blest\b": "plain words",
    r"\bhas to say\b|\bhave to say\b": "sends, reports",
    r"\bof any kind of\b|\bof whatever\b|\bwhatever it is\b": "any",
    r"\bnot a word\b|\bwithout a word\b": "without a message",
    r"\bis said to\b|\bare said to\b": "say who says it",
    r"\bhas nothing to say\b|\bnothing to tell\b": "has no message",
    r"\bmisses nothing\b|\bloses nothing\b": "say what stays",
    r"\b(?:is|are|was) let in\b": "is admitted",
    r"\bits like\b|\btheir like\b": "similar ones",
}
"""The pattern of each habit, for text whose lines are joined, and what to write instead."""

TEST = re.compile(r"^ *(?:async )?def (test_\w+)", re.MULTILINE)
ODD_NAME = re.compile(
    r"^test_what_|_(?:who|whom|whoever|nobody|nobodys|anybody|somebody|told|tells?|beside|whatever|"
    r"wherever|nowhere|asked|said|says?|heard|gone|goes_on|go_on|as_it_was|as_they_were|anew|ever|"
    r"of_their_own|of_ours|brings|begun|began|stands?|lies|took|come_home|go_home|in_one_go)(?:_|$)"
)
"""Names of tests that are not subject, verb and object in the terms of the glossary."""

FOLDERS = ["pipeline", "docs", "tests", "examples", "benchmarks", "interop", "scripts", "deploy"]
NOT_OURS = re.compile(
    r"(?:^|/)\.|node_modules|_pb2|\.pb\.|\.pb\.gw\.|tests/support/(?:golden/|habits\.py)|\.pyi$"
)
PYTHON = re.compile(
    r"#[^\n]*|[rRbBfFuU]{0,2}(?:"
    r'"""(?:[^"\\]|\\.|"(?!""))*"""|' + r"'''(?:[^'\\]|\\.|'(?!''))*'''|"
    r'"(?:[^"\\\n]|\\.)*"|' + r"'(?:[^'\\\n]|\\.)*')",
    re.DOTALL,
)
GO = re.compile(r"//[^\n]*|/\*.*?\*/|`[^`]*`|'(?:[^'\\\n]|\\.)+'|\"(?:[^\"\\\n]|\\.)*\"", re.DOTALL)
WHOLE = {".md", ".yml", ".yaml", ".html", ".js", ".mjs", ".in", ".toml"}
PARAGRAPH = re.compile(r"\n(?=[ \t]*(?:[-*|>+]|#+ |\d+\. |```|\n))")
MARKS = re.compile(r"\s*\n\s*(?:#|//|\*)?\s*")


@cache
def files() -> tuple[str, ...]:
    """Return the paths of the files with our prose."""
    paths = [path for path in ROOT.iterdir() if path.is_file()]
    paths += [path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.is_file()]
    names = sorted(path.relative_to(ROOT).as_posix() for path in paths)
    return tuple(
        name
        for name in names
        if (Path(name).suffix in WHOLE | {".py", ".go"} or name == "Makefile")
        and not NOT_OURS.search(name)
    )


def pieces(text: str, suffix: str) -> Iterator[tuple[int, str]]:
    """Yield each comment, text or paragraph as one line, with its offset in `text`."""
    if suffix not in (".py", ".go"):
        place = 0
        for part in PARAGRAPH.split(text):
            yield place, MARKS.sub(" ", part)
            place += len(part) + 1
        return
    begin, end, parts = 0, 0, ""
    for match in (PYTHON if suffix == ".py" else GO).finditer(text):
        gap = text[end : match.start()]
        if parts and (gap.strip() or gap.count("\n") > 1):
            yield begin, parts
            parts = ""
        begin = begin if parts else match.start()
        parts += _plain(match[0]) if parts[-1:] == " " or not parts else " " + _plain(match[0])
        end = match.end()
    if parts:
        yield begin, parts


def _plain(token: str) -> str:
    """Return a comment or a text without its marks, a line for each paragraph."""
    if token[0] == "#" or token[:2] in ("//", "/*"):
        return MARKS.sub(" ", token.strip("#/* "))
    inner = token.lstrip("rRbBfFuU").strip("\"'`")
    if "\n" not in inner:
        return inner
    return "\n".join(MARKS.sub(" ", part).strip() for part in inner.split("\n\n"))


PATTERNS = {habit: re.compile(habit, re.MULTILINE) for habit in HABITS}


def hits(path: str = "") -> Iterator[str]:
    """Yield `file:line: the words, and what to write instead` for each hit below a path."""
    for name in files():
        if not f"{name}/".startswith(f"{path}/" if path else ""):
            continue
        text = (ROOT / name).read_text(encoding="utf-8", errors="replace")
        for place, piece in pieces(text, Path(name).suffix):
            for habit, pattern in PATTERNS.items():
                for match in pattern.finditer(piece):
                    around = piece[max(0, match.start() - 40) : match.end() + 30]
                    first = match[0].strip().split()[0]
                    at = text.find(first, place)
                    line = text.count("\n", 0, max(at, place)) + 1
                    yield f"{name}:{line}: ...{around}... ({HABITS[habit]})"
        for match in TEST.finditer(text) if name.startswith("tests/") else ():
            if ODD_NAME.search(match[1]):
                yield f"{name}:{match[1]} (subject, verb and object in the terms of the glossary)"


if __name__ == "__main__":
    for path in sys.argv[1:] or [""]:
        for hit in hits(path.strip("./")):
            print(hit)
