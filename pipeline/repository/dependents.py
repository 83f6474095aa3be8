"""Ensembles and what they are made of: who needs whom, among the models that are known."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import msgspec

from pipeline.errors import ConfigError
from pipeline.repository.namespaces import links_of
from pipeline.repository.polled_model import PolledModel

Known = Mapping[str, PolledModel]
"""Models by key."""


def users_of(known: Known, names: Iterable[str]) -> set[str]:
    """Return the ensembles that are made of these models, at any depth."""
    found: set[str] = set()
    left = set(names)
    while left:
        left = {
            each.key
            for each in known.values()
            if left.intersection(each.steps) and each.key not in found
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


def linked(known: Known) -> dict[str, PolledModel]:
    """Return models with what the names of their steps mean among them; see `links_of`."""
    return {
        key: msgspec.structs.replace(
            model, links=links_of(model.namespace, model.step_names, known.keys())
        )
        for key, model in known.items()
    }


def affected_by(known: Known, changed: Collection[str], then: Known) -> set[str]:
    """Return models that change, those that are made of them, and those that mean others `then`."""
    found = {*changed, *users_of(known, changed), *users_of(then, changed)}
    both = known.keys() & then.keys()
    return found | {key for key in both if known[key].steps != then[key].steps}


def check_steps(known: Known, model: PolledModel, ready: Callable[[str], Sequence[int]]) -> None:
    """Look at whether an ensemble has its models.

    Args:
        ready: returns the versions of a model that are.

    Raises:
        ConfigError: it lacks one, or is one of them; in Triton's words.
    """
    before = before_itself({**known, model.key: model}, model.key)
    if before:
        raise ConfigError(
            f"circular dependency between ensembles: {model.name} -> ... -> {before} -> "
            f"{model.name}"
        )
    for step in model.config.ensemble_scheduling.step:
        name = step.model_name
        key = model.links.get(name, name)
        depends = f"ensemble '{model.name}' depends on '{name}'"
        if key not in known:
            raise ConfigError(
                f"ensemble '{model.name}' contains models that are not available "
                f"or ambiguous: {name}"
            )
        versions = ready(key)
        if not versions:
            raise ConfigError(f"{depends} which has no loaded version.")
        if step.model_version not in (0, -1, *versions):
            raise ConfigError(
                f"{depends} whose required version {step.model_version} is not loaded."
            )
