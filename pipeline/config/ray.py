"""`dag.ray` and `op.<name>.ray`: a Ray cluster, and the actors there that work for an Op."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from msgspec import Meta, Struct

Share = Annotated[float, Meta(ge=0)]


class RayConfig(Struct, frozen=True, kw_only=True):
    """`dag.ray`: the cluster that this server's actors are on."""

    address: Annotated[
        str,
        "auto: a cluster that runs here, else one of our own; local: one of our own; else where.",
    ] = "auto"
    num_cpus: Annotated[
        int | None, Meta(ge=1), "CPUs of a cluster of our own; absent: those of the machine."
    ] = None
    object_store_mib: Annotated[
        int | None, Meta(ge=80), "Memory for its objects, MiB; absent: as Ray chooses."
    ] = None
    working_dir: Annotated[
        str | None, "Folder whose modules the nodes get; absent: they find them by themselves."
    ] = None
    start_timeout_s: Annotated[
        float, Meta(gt=0), "Longest wait at the start for a node that has room for an actor, s."
    ] = 120.0


class RayOpConfig(Struct, frozen=True, kw_only=True):
    """`op.<name>.ray`: what each of its actors needs, and where it is put."""

    num_cpus: Annotated[Share, "CPUs that an actor takes of its node's, maybe a fraction."] = 1.0
    num_gpus: Annotated[Share, "The same of its cards."] = 0.0
    resources: Annotated[Mapping[str, float], "The same of a node's own, by their names."] = {}
    placement: Annotated[
        Literal["any", "spread", "pack"],
        "spread: on as many nodes as there are; pack: on as few; any: as Ray likes.",
    ] = "any"
    near: Annotated[
        str | None, "Op on whose nodes they are put where there is room, for large answers."
    ] = None
    model_from: Annotated[
        Literal["path", "store"],
        "path: each node has the model where this one has it; store: the server sends it.",
    ] = "path"
