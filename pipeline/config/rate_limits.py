"""`rate_limit` and `op.<name>.rate_limiter`: resources that workers share, in Triton's words."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from pipeline.config.fields import Alias

Count = Annotated[int, Meta(ge=0)]


class NeedConfig(Struct, frozen=True, kw_only=True):
    """One resource that a worker needs while it runs a batch."""

    name: Annotated[str, "Name of the resource."]
    count: Annotated[Count, "How much of it."]
    is_global: Annotated[
        bool, Alias("global"), "True: all devices have it together; False: each has its own."
    ] = False


class NeedsConfig(Struct, frozen=True, kw_only=True):
    """Needs of some of an Op's workers."""

    resources: Annotated[tuple[NeedConfig, ...], "All that one of them needs."] = ()
    priority: Annotated[Count, "Gets 1/priority as many chances; 0: 1."] = 1
    workers: Annotated[Count, "How many workers it is for; 0: all that are left."] = 0
    device: Annotated[Count, "Number of the device that they are on."] = 0


class ResourceConfig(Struct, frozen=True, kw_only=True):
    """One resource of the server."""

    name: Annotated[str, "Name of the resource."]
    count: Annotated[Count, "How much there is of it."]
    device: Annotated[int, Meta(ge=-1), "On the device of this number; -1: on each."] = -1


class RateLimitConfig(Struct, frozen=True, kw_only=True):
    """`rate_limit`: whether workers wait for resources, and how much there is of these."""

    mode: Annotated[
        Literal["off", "execution_count"],
        "off: none waits; execution_count: who has run least, by its priority, goes first.",
    ] = "off"
    resources: Annotated[
        tuple[ResourceConfig, ...],
        "How much there is; none: of each as much as the worker needs that needs most.",
    ] = ()
