"""RateLimiter: instances of a server's models share resources, as in Triton.

An instance runs a batch when all its resources are free. Of several waiting instances the one with
the least product of executions and priority goes next. While its resources are not free no other
goes, so that others do not keep overtaking an instance that needs many of them. Plain code on the
event loop.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from pipeline.errors import ConfigError

SHARED = -2
"""The device of a resource that all devices share."""

ANY_DEVICE = -1
"""The device of a limit that applies to each device separately."""

NO_LIMIT = 2**31

Resource = tuple[int, str]
"""A device, or SHARED, and a name."""


class Needs(msgspec.Struct, frozen=True):
    """Resources that one instance needs while it runs, and its share of turns: 1 / priority."""

    resources: Mapping[Resource, int] = {}
    priority: int = 1


class Instance:
    """One instance of a model."""

    __slots__ = ("executions", "model", "needs", "run")

    def __init__(self, model: LimitedModel, needs: Needs) -> None:
        self.model: LimitedModel = model
        self.needs: Needs = needs
        self.executions: int = 0
        self.run: Any = None

    @property
    def turn(self) -> tuple[int, int]:
        """Return a key that sorts the waiting instances: the least goes first."""
        return (self.executions + 1) * self.needs.priority, self.needs.priority


class RateLimiter:
    """The resources of a server.

    Args:
        limits: the amount of each resource, by ANY_DEVICE or a device and name; empty: each
            resource
            has the amount that the largest need of an instance asks for.

    Attributes:
        soon: calls a function in one of the next rounds of the loop. Freed resources wait that
            long,
            because the model that had them may have more work and should take part.
    """

    def __init__(self, limits: Mapping[Resource, int] | None = None) -> None:
        self.soon: Callable[[Callable[[], None]], object] = lambda work: work()
        self._is_due = False  # a choice of the next instance is due
        self._limits = dict(limits or {})
        self._there: dict[Resource, int] = {}
        self._taken: Counter[Resource] = Counter()
        self._models: list[LimitedModel] = []
        self._staged: list[Instance] = []

    def add(self, instances: Sequence[Needs], start: Callable[[Any], None]) -> LimitedModel:
        """Add the instances of a model; `start` begins a run of one.

        Raises ConfigError, with Triton's text: the resources are not enough for an instance.
        """
        others = [
            added.executions * added.needs.priority
            for model in self._models
            for added in model.instances
        ]
        model = LimitedModel(self, instances, start)
        least = min(others, default=0)
        for instance in model.instances:  # a new instance does not catch up with the others
            instance.executions = least // instance.needs.priority
        self._models.append(model)
        try:
            self._settle()
        except ConfigError:
            self.remove(model)
            raise
        return model

    def remove(self, model: LimitedModel) -> None:
        """Remove a model; its instances free their resources."""
        self._models.remove(model)
        self._staged = [instance for instance in self._staged if instance.model is not model]
        for instance in model.running:
            self._taken.subtract(instance.needs.resources)
        self._settle()
        self.allocate()

    def _settle(self) -> None:
        """Compute the amount of each resource, and how many instances of a model fit in it."""
        most: dict[Resource, int] = {}
        for model in self._models:
            for instance in model.instances:
                for resource, count in instance.needs.resources.items():
                    most[resource] = max(count, most.get(resource, 0))
        for device, name in most:
            if device == SHARED and any(at != SHARED and other == name for at, other in most):
                raise ConfigError(
                    f'Resource "{name}" is present as both global and device-specific resource in '
                    "the model configuration."
                )
        self._there = {resource: self._limited(resource, count) for resource, count in most.items()}
        for model in self._models:
            model.at_once = self._fitting(model)

    def _limited(self, resource: Resource, needed: int) -> int:
        if not self._limits:
            return needed
        device, name = resource
        devices = {key for key, _ in self._limits} if device == SHARED else {device, ANY_DEVICE}
        count = max((self._limits.get((key, name), 0) for key in devices), default=0)
        if count < needed:
            raise ConfigError(
                f'Resource count for "{name}" is limited to {count} which will prevent scheduling '
                f"of one or more model instances, the minimum required count is {needed}"
            )
        return count

    def _fitting(self, model: LimitedModel) -> int:
        """Return how many instances of a model can run at once, if it has all resources."""
        taken: Counter[Resource] = Counter()
        count = 0
        for instance in sorted(
            model.instances, key=lambda candidate: sum(candidate.needs.resources.values())
        ):
            if all(
                taken[resource] + needed <= self._there[resource]
                for resource, needed in instance.needs.resources.items()
            ):
                taken.update(instance.needs.resources)
                count += 1
        return count

    def stage(self, instance: Instance) -> None:
        """Let an instance wait for its resources."""
        self._staged.append(instance)

    def allocate(self) -> None:
        """Begin the runs whose turn it is, as far as there are resources."""
        while self._staged and not self._is_due:
            instance = min(self._staged, key=lambda staged: staged.turn)  # of equal ones the first
            needs = instance.needs.resources
            if any(
                self._taken[resource] + count > self._there[resource]
                for resource, count in needs.items()
            ):
                return
            self._staged.remove(instance)
            self._taken.update(needs)
            instance.model.begin(instance)

    def free(self, instance: Instance) -> None:
        """Take back the resources of an instance; the next one is chosen soon."""
        self._taken.subtract(instance.needs.resources)
        if not self._is_due:
            self._is_due = True
            self.soon(self._look)

    def _look(self) -> None:
        self._is_due = False
        self.allocate()


class LimitedModel:
    """One model at a RateLimiter: its runs wait here for an instance and for resources.

    Attributes:
        at_once: how many instances can run at the same time.
        running: the instances that run.
    """

    def __init__(
        self, limiter: RateLimiter, instances: Iterable[Needs], start: Callable[[Any], None]
    ) -> None:
        self.instances: list[Instance] = [Instance(self, needs) for needs in instances]
        self.at_once: int = NO_LIMIT
        self.running: list[Instance] = []
        self._limiter = limiter
        self._start = start
        self._idle = list(self.instances)
        self._waiting: deque[Any] = deque()

    def ask(self, run: Any) -> None:
        """Begin a run when it is its turn; a run with a `worker` needs that instance."""
        self._waiting.append(run)
        self._stage()
        self._limiter.allocate()

    def release(self, run: Any) -> None:
        """Note that a run has ended, or was superseded by another."""
        instances = [instance for instance in self.running if instance.run is run]
        instances += [instance for instance in self.running if instance.run.is_superseded]
        if not instances:  # it has not begun
            if run in self._waiting:
                self._waiting.remove(run)
            return
        instance = instances[0]
        self.running.remove(instance)
        instance.run = None
        instance.executions += 1
        self._idle.append(instance)
        self._stage()
        self._limiter.free(instance)

    def begin(self, instance: Instance) -> None:
        """Begin the run of an instance that has its resources."""
        self.running.append(instance)
        self._start(instance.run)

    def close(self) -> None:
        """Free all resources of the model; its waiting runs do not begin."""
        self._waiting.clear()
        self._limiter.remove(self)

    def _stage(self) -> None:
        """Assign waiting runs to idle instances, which then wait for their resources."""
        left: deque[Any] = deque()
        while self._waiting and self._idle:
            run = self._waiting.popleft()
            instance = self._instance_for(run)
            if instance is None:
                left.append(run)
                continue
            self._idle.remove(instance)
            instance.run = run
            self._limiter.stage(instance)
        self._waiting = left + self._waiting

    def _instance_for(self, run: Any) -> Instance | None:
        place = run.worker
        if place is not None and place < len(self.instances):
            instance = self.instances[place]
            return instance if instance in self._idle else None
        return min(self._idle, key=lambda idle: idle.turn)
