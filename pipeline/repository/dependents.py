"""Ensembles and what they are made of: who needs whom, among the models that are known."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from pipeline.repository.polled_model import PolledModel

Known = Mapping[str, PolledModel]
"""Models by name."""


def users_of(known: Known, names: Iterable[str]) -> set[str]:
    """Return the ensembles that are made of these models, at any depth."""
    found: set[str] = set()
    left = set(names)
    while left:
        left = {
            each.name
            for each in known.values()
            if left.intersection(each.steps) and each.name not in found
        }
        found |= left
    return found


def only_needed_by(known: Known, name: str, asked_for: Collection[str]) -> set[str]:
    """Return the models that a model is made of, and nobody else asked for or needs."""
    found: set[str] = set()
    left = [name]
    while left:
        model = known.get(left.pop())
        for step in () if model is None else model.steps:
            users = users_of(known, [step]) - {name, *found}
            if step not in asked_for and not users and step in known:
                found.add(step)
                left.append(step)
    return found


def in_order(known: Known, names: Iterable[str]) -> list[str]:
    """Return models, each behind those that it is made of."""
    wanted, found = set(names), list[str]()

    def visit(name: str, path: tuple[str, ...]) -> None:
        if name not in wanted or name in found or name in path:
            return
        for step in known[name].steps:
            visit(step, (*path, name))
        found.append(name)

    for name in sorted(wanted):
        visit(name, ())
    return found


def before_itself(known: Known, name: str) -> str:
    """Return which model, made of this one, this one is made of; "": there is none."""
    steps, left, seen = known[name].steps, [name], set[str]()
    while left:
        user = left.pop(0)
        if user in steps:
            return user
        seen.add(user)
        left += [each for each, model in known.items() if user in model.steps and each not in seen]
    return ""
