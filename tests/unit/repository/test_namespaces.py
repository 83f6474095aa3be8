"""Namespaces: which model a name means."""

from __future__ import annotations

from pipeline.repository.model_folders import key_of, links_of, name_of, named

KEYS = ("/a::part", "/b::part", "/b::only")


def test_keys_and_names():
    assert (key_of("", "x"), key_of("/a", "x")) == ("x", "/a::x")
    assert (name_of("x"), name_of("/a::x")) == ("x", "x")
    assert named(KEYS, "part") == ["/a::part", "/b::part"]
    assert named(KEYS, "/b::part") == ["/b::part"]
    assert named(KEYS, "art") == []


def test_a_model_of_the_same_namespace_precedes_a_unique_one():
    steps = ("part", "only", "none")
    assert links_of("/a", steps, KEYS) == {"part": "/a::part", "only": "/b::only"}
    assert links_of("/b", steps, KEYS) == {"part": "/b::part", "only": "/b::only"}
    assert links_of("/c", steps, KEYS) == {"only": "/b::only"}, "part is ambiguous"
