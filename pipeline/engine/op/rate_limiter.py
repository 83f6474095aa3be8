"""RateLimiter: instances of the models of a server share resources, in Triton's way.

An instance runs a batch when all that it needs is free. Of several that wait the one goes next
whose executions times its priority are the least; while that has not what it needs, no other goes:
so who needs much is not overtaken for ever. Plain code on the event loop.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from pipeline.errors import ConfigError

SHARED = -2
"""Stands for the device of a resource that all devices have together."""

ANY_DEVICE = -1
"""Stands for the device of a limit that counts for each of them by itself."""

NO_LIMIT = 2**31

Resource = tuple[int, str]
"""A device, or SHARED, and a name."""


class Needs(msgspec.Struct, frozen=True):
    """Needs of one instance while it runs, and how many chances it gets: 1 / priority."""

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
        """Its place among those that wait, by what it will have had: the least goes first."""
        return (self.executions + 1) * self.needs.priority, self.needs.priority


class RateLimiter:
    """The resources of a server.

    Args:
        limits: how much there is of each resource, by ANY_DEVICE or a device and name; none: of
            each as much as the instance needs that needs most.

    Attributes:
        soon: does something in one of the next rounds of the loop. What has become free waits so
            long: who had it may have more to do, and is to be among those that are looked at.
    """

    def __init__(self, limits: Mapping[Resource, int] | None = None) -> None:
        self.soon: Callable[[Callable[[], None]], object] = lambda work: work()
        self._is_due = False  # to look who goes next
        self._limits = dict(limits or {})
        self._there: dict[Resource, int] = {}
        self._taken: Counter[Resource] = Counter()
        self._models: list[LimitedModel] = []
        self._staged: list[Instance] = []

    def add(self, instances: Sequence[Needs], start: Callable[[Any], None]) -> LimitedModel:
        """Add the instances of a model, whose runs are begun by `start`.

        Raises ConfigError: there is not enough for one of them; in Triton's words.
        """
        others = [
            added.executions * added.needs.priority
            for model in self._models
            for added in model.instances
        ]
        model = LimitedModel(self, instances, start)
        least = min(others, default=0)
        for instance in model.instances:  # who comes late does not make up for what it missed
            instance.executions = least // instance.needs.priority
        self._models.append(model)
        try:
            self._settle()
        except ConfigError:
            self.remove(model)
            raise
        return model

    def remove(self, model: LimitedModel) -> None:
        """Forget a model; what its instances have is free."""
        self._models.remove(model)
        self._staged = [instance for instance in self._staged if instance.model is not model]
        for instance in model.running:
            self._taken.subtract(instance.needs.resources)
        self._settle()
        self.allocate()

    def _settle(self) -> None:
        """Find out how much there is, and how many instances of each model run at once."""
        most: dict[Resource, int] = {}
        for model in self._models:
            for instance in model.instances:
                for resource, count in instance.needs.resources.items():
                    most[resource] = max(count, most.get(resource, 0))
        for device, name in most:
            if device == SHARED and any(d != SHARED and n == name for d, n in most):
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
        """Return how many instances of a model can run at once, if it has all to itself."""
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
        """Have an instance wait for what it needs."""
        self._staged.append(instance)

    def allocate(self) -> None:
        """Begin the runs whose turn it is, as far as there is what they need."""
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
        """Take back what an instance had, and see who goes next."""
        self._taken.subtract(instance.needs.resources)
        if not self._is_due:
            self._is_due = True
            self.soon(self._look)

    def _look(self) -> None:
        self._is_due = False
        self.allocate()


class LimitedModel:
    """One model at a RateLimiter: its runs wait here for an instance, and for resources.

    Attributes:
        at_once: instances that can run at the same time.
        running: those that do.
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
        """Begin a run when it is its turn; one with a `worker` is for that instance."""
        self._waiting.append(run)
        self._stage()
        self._limiter.allocate()

    def release(self, run: Any) -> None:
        """Take note that a run has ended, or another one that has taken the place of one."""
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
        """Begin the run of an instance, which has what it needs."""
        self.running.append(instance)
        self._start(instance.run)

    def close(self) -> None:
        """Give back all that the model has; nothing of it begins any more."""
        self._waiting.clear()
        self._limiter.remove(self)

    def _stage(self) -> None:
        """Have idle instances take runs, and wait for what they need."""
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
