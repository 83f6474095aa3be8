"""`op.<name>.dynamic_batching`, with the names of Triton's section; traits of schedulers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from msgspec import Meta, Struct

from pipeline.config import registry

if TYPE_CHECKING:
    from pipeline.config.schema import OpConfig

Positive = Annotated[int, Meta(ge=1)]
Size = Annotated[int, Meta(ge=0)]


class QueuePolicyConfig(Struct, frozen=True, kw_only=True):
    """Limits of a queue: how many requests wait, how long, and the action for late ones."""

    timeout_action: Annotated[
        Literal["reject", "delay"],
        "Action on a request that waits too long: reject: refuse it; delay: move it behind all "
        "others.",
    ] = "reject"
    default_timeout_microseconds: Annotated[Size, "Maximum wait in the queue, us; 0: no limit."] = 0
    allow_timeout_override: Annotated[
        bool, "True: a request's own timeout counts if it is shorter."
    ] = False
    max_queue_size: Annotated[
        Size, "Maximum number of waiting requests; more are refused; 0: no limit."
    ] = 0


class LevelPolicyConfig(QueuePolicyConfig, frozen=True, kw_only=True):
    """The queue of one priority level."""

    level: Annotated[Positive, "The level that these limits are for."]


class DynamicBatchingConfig(Struct, frozen=True, kw_only=True):
    """`op.<name>.dynamic_batching`: read with `batching: dynamic`. Sizes are in samples."""

    preferred_batch_size: Annotated[
        tuple[Positive, ...], "A batch of one of these sizes runs at once; empty: batch_size."
    ] = ()
    max_queue_delay_microseconds: Annotated[
        Size, "Maximum wait for a preferred size, us; 0: take what is ready."
    ] = 0
    preserve_ordering: Annotated[
        bool, "True: answers leave the Op in the order of the requests."
    ] = False
    priority_levels: Annotated[
        Size, "Number of priority levels, of which 1 goes first; 0: no priorities."
    ] = 0
    default_priority_level: Annotated[
        Size, "Level of a request without a valid priority; 1 to priority_levels."
    ] = 0
    default_queue_policy: Annotated[
        QueuePolicyConfig, "Limits of the queue; each priority level has its own queue."
    ] = QueuePolicyConfig()
    priority_queue_policy: Annotated[
        tuple[LevelPolicyConfig, ...], "Limits for single levels, which replace the default ones."
    ] = ()

    def policy_of(self, level: int) -> QueuePolicyConfig:
        """Return the limits of a level's queue; without levels there is only the default."""
        own = self.priority_queue_policy if self.priority_levels else ()
        return next((policy for policy in own if policy.level == level), self.default_queue_policy)

    @property
    def policies(self) -> tuple[QueuePolicyConfig, ...]:
        """Return the limits of all queues."""
        return (self.default_queue_policy, *self.priority_queue_policy)


class SchedulerTraits(Struct, frozen=True, kw_only=True):
    """Traits of a scheduler, known before it is made: the attribute `traits` of its class.

    A derived class does not inherit the traits of its base; it sets its own.

    Attributes:
        reads_section: it reads the Op's `dynamic_batching`, and the requests' parameters.
        sees_op: its class method `for_op(op, options)` makes it, not the settings alone.
        lets_pass: a single request that it would pass on at once may skip it.
        steps: its batches are requests that join the steps of a worker; each has a seat until
            `leave` is called for it; see `streams.iterative`.
        takes_convoys: a convoy may be one item; the scheduler can be iterated over.
        shares_messages: as `takes_convoys`, if each request runs alone: with `batch_size` 1.
        keeps_places: each sequence has its own place in the batches of its worker.
    """

    reads_section: bool = False
    sees_op: bool = False
    lets_pass: bool = False
    steps: bool = False
    takes_convoys: bool = False
    shares_messages: bool = False
    keeps_places: bool = False


_NO_TRAITS = SchedulerTraits()


def traits_of(batching: str, kind: registry.Kind = "schedulers") -> SchedulerTraits:
    """Return the traits of the scheduler of this name."""
    own = getattr(registry.find(kind, batching), "__dict__", {})
    traits: SchedulerTraits = own.get("traits", _NO_TRAITS)
    return traits


def has_sequences(config: OpConfig) -> bool:
    """Return whether requests for an Op belong to sequences of their callers."""
    return config.sequence.strategy is not None and not traits_of(config.batching).steps


def fault_of_batching(name: str, batching: DynamicBatchingConfig, most: int) -> str:
    """Return the fault of a model's section, in Triton's words; "" without one.

    Args:
        most: maximum number of samples of one execution.
    """
    levels = batching.priority_levels
    for size in batching.preferred_batch_size:
        if size <= 0:
            return f"dynamic batching preferred size must be positive for {name}"
        if size > most:
            return f"dynamic batching preferred size must be <= max batch size for {name}"
    if levels and not 1 <= batching.default_priority_level <= levels:
        return f"default priority level must be in range [1, {levels}] for {name}"
    if levels and not all(1 <= policy.level <= levels for policy in batching.priority_queue_policy):
        return f"priority queue policy must have priority level in range [1, {levels}] for {name}"
    if batching.preserve_ordering and levels > 1:
        return f"Only one priority level is allowed when 'preserve_ordering' is true for {name}"
    if batching.preserve_ordering and any(map(_delays, batching.policies)):
        return (
            "Queue policy can not have DELAY as timeout action when 'preserve_ordering' is true "
            f"for {name}"
        )
    return ""


def _delays(policy: QueuePolicyConfig) -> bool:
    return policy.default_timeout_microseconds != 0 and policy.timeout_action == "delay"
