"""Namespaces: models of one name in several repositories, each in the namespace of its own."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

BETWEEN = "::"


def key_of(namespace: str, name: str) -> str:
    """Return what a model is known by: its name alone where there are no namespaces."""
    return f"{namespace}{BETWEEN}{name}" if namespace else name


def name_of(key: str) -> str:
    """Return the name of a model, which has no namespace."""
    return key.rpartition(BETWEEN)[2]


def named(keys: Iterable[str], name: str) -> list[str]:
    """Return the models of a name, or the one of a key."""
    return [key for key in keys if name in (key, name_of(key))]


def links_of(namespace: str, steps: Iterable[str], keys: Collection[str]) -> Mapping[str, str]:
    """Return the keys of the models that an ensemble means by the names of its steps.

    A model of its own namespace comes first, then one whose name no other has. Of a name that is
    in several others, or in none, there is nothing.
    """
    links = {}
    for name in steps:
        own, others = key_of(namespace, name), named(keys, name)
        if own in keys:
            links[name] = own
        elif len(others) == 1:
            links[name] = others[0]
    return links
