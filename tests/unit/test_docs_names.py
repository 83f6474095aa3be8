"""The names in docs/ and CONTRIBUTING.md: what a link or the glossary names is in that file."""

from __future__ import annotations

import ast
import re
from collections import Counter
from functools import cache
from pathlib import Path

import pytest
from paths import ROOT
from sources import nodes, parsed

PACKAGE = ROOT / "pipeline"
GLOSSARY = ROOT / "docs" / "glossary.md"
PAGES = (ROOT / "docs" / "architecture.md", ROOT / "CONTRIBUTING.md")
LINK = re.compile(r"\[`([\w.]+)`\]\(([\w./]+\.py)\)")
WORD = re.compile(r"^\| ([^|]+) \| [^|]+ \| (.+) \|$", re.MULTILINE)
PLACE = re.compile(r"(?:`(\w+)`, )?`(pipeline/[\w/]+(?:\.py|/))`")

# Paddle Serving's public classes and the library's own, for isinstance to hold (see the glossary).
TWICE = {"ChannelData", "PipelineServer", "WebService"}


@cache
def names_in(path: Path) -> frozenset[str]:
    """Return what a module defines: functions, classes with their members, and values."""
    return frozenset(_names(parsed(path).body, ""))


def _names(body: list[ast.stmt], prefix: str) -> list[str]:
    collected = []
    for node in body:
        match node:
            case ast.ClassDef(name=name):
                collected += [prefix + name, *_names(node.body, f"{prefix}{name}.")]
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                collected.append(prefix + name)
            case ast.Assign(targets=targets):
                collected += [
                    prefix + target.id for target in targets if isinstance(target, ast.Name)
                ]
            case ast.AnnAssign(target=ast.Name(id=name)):
                collected.append(prefix + name)
    return collected


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_each_link_to_code_names_something_that_is_there(page):
    links = LINK.findall(page.read_text(encoding="utf-8"))
    assert links, "nothing was found: the test would hold of anything"
    wrong = [
        f"{name} is not in {path}"
        for name, path in links
        if name not in names_in((page.parent / path).resolve())
    ]
    assert wrong == []


def test_contributing_has_each_folder_in_its_table_and_in_its_drawing():
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    folders = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert folders <= set(re.findall(r"^\| \[(\w+)\]\(pipeline/\1\) \|", text, re.MULTILINE))
    drawing = set(re.findall(r"\w+", text.partition("```text")[2].partition("```")[0]))
    assert folders - drawing == {"config", "system", "tuning"}, "what all use, and what looks on"


def test_each_decision_has_its_form():
    text = (ROOT / "docs" / "decisions.md").read_text(encoding="utf-8")
    decisions = re.split(r"^### ", text, flags=re.MULTILINE)[1:]
    assert decisions
    heading = re.compile(r"\S.* \(\d{4}-\d\d-\d\d\)")
    wrong = [
        decision.partition("\n")[0]
        for decision in decisions
        if not heading.fullmatch(decision.partition("\n\n")[0])
        or "Why:" not in decision
        or not re.search("(?:Rejected|Lost)[^.]{0,40}:", decision)
        or len(re.split(r"^## ", decision, flags=re.MULTILINE)[0].split()) > 120
    ]
    assert wrong == [], "a sentence, (day), a blank line; what, why, what was rejected; short"
    titles = [decision.partition("\n")[0] for decision in decisions]
    assert len(titles) == len(set(titles))
    assert len(re.findall(r"(?<=\n\n)##+ .+(?=\n\n)", text)) == len(
        re.findall(r"^##+ .*", text, re.MULTILINE)
    )


MOST_WORDS = 72_350
"""In docs/, without the archive, generated pages and what benchmarks write. Only lowered."""

WRITTEN_BY_A_BENCHMARK = re.compile(r"<!-- [^>]*: written by .*?<!-- [\w ]+: end -->", re.DOTALL)


def test_the_documents_do_not_grow():
    others = ("decisions-archive.md", "configuration-reference.md", "measurements.md")
    generated = ("verified.md", "versions.md")
    pages = [path for path in (ROOT / "docs").rglob("*.md") if path.name not in others + generated]
    texts = [WRITTEN_BY_A_BENCHMARK.sub("", page.read_text(encoding="utf-8")) for page in pages]
    assert sum(len(text.split()) for text in texts) <= MOST_WORDS


def test_each_word_of_the_glossary_is_in_its_file():
    wrong = []
    for word, where in WORD.findall(GLOSSARY.read_text(encoding="utf-8")):
        places = PLACE.findall(where)
        if word in ("word", "---"):
            continue
        assert places, f"{word}: no place"
        for name, path in places:
            place = ROOT / path
            if not place.exists() or (name and name not in names_in(place)):
                wrong.append(f"{word}: no {name} in {path}")
    assert wrong == []


def test_the_words_of_the_glossary_are_unique_and_in_order():
    words = [word for word, _ in WORD.findall(GLOSSARY.read_text(encoding="utf-8"))][2:]
    assert words == sorted(words, key=str.lower)
    assert len(words) == len(set(words))


@cache
def _classes() -> Counter[str]:
    return Counter(
        node.name
        for path in PACKAGE.rglob("*.py")
        if not path.name.endswith(("_pb2.py", "_pb2_grpc.py"))
        for node in nodes(path)
        if isinstance(node, ast.ClassDef)
    )


def test_a_class_name_belongs_to_one_class():
    classes = _classes()
    assert {name for name, count in classes.items() if count > 1 and name[0] != "_"} == TWICE


@pytest.mark.parametrize(
    "word",
    [
        *("Door", "Site", "Gate", "InFlight", "Copies", "Parcel", "Turn", "Companion", "Reel"),
        *("Cargo", "Commons", "Ranks", "Turnstile", "Shipment", "Pullable", "Lasting", "Vacant"),
        *("Surrounded", "Detoured", "Elsewhere", "Each"),
    ],
)
def test_an_abandoned_word_is_in_no_class_name(word):
    """The glossary has the field's word for each (frontend, routes, admission, span ...)."""
    pattern = re.compile(f"_?(?:[A-Z][a-z0-9]*)*?{word}(?![a-z])")
    assert [name for name in _classes() if pattern.match(name)] == []


GIVEN_UP = {
    *("let_in", "everybody", "strand", "offer", "offer_alone", "pump", "touch", "deliver"),
    *("seal", "unseal", "hear_out", "culprit", "recall", "came_up", "leaves", "now_idle"),
    *("hurry", "ends_before", "startup_frozen", "keep_freed_memory", "occupy_descriptors"),
    *("note_of", "unserved", "undisturbed", "weighed", "stretches", "throw_out", "are_many"),
}
"""Functions in whose place the field's words are now: enqueue, schedule, route, drain ..."""


def test_an_abandoned_name_is_not_a_function():
    results = {
        f"{path.relative_to(PACKAGE)}: {name}"
        for path in PACKAGE.rglob("*.py")
        for name in names_in(path)
        if name.rpartition(".")[2] in GIVEN_UP
    }
    assert results == set()
