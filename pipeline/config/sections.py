"""Small sections of config.yml: rates, stores, CORS, restrictions, Ray, elastic, ragged."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Literal

from msgspec import Meta, Struct

from pipeline.config.fields import Alias, Masked

if TYPE_CHECKING:
    from pipeline.config.schema import OpConfig

LOOPBACK = "127.0.0.1"
ANY = "::"
"""All addresses, IPv6 and IPv4."""

_hosts = [LOOPBACK]


def default_host() -> str:
    """Return the address that servers listen on whose configuration says none."""
    return _hosts[-1]


def listen_as_the_predecessor() -> None:
    """Listen on all addresses from now on: its scripts say none, and are asked by others."""
    _hosts[:] = [ANY]


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


# Stores of large inputs -------------------------------------------------------------------------


class InputStoreConfig(Struct, frozen=True, kw_only=True):
    """`op.<name>.input_store`: how large inputs get to a pipeline at `server_endpoints`."""

    url: Annotated[
        str | None, "The payload_store of that pipeline; absent: inputs are in the requests."
    ] = None
    from_bytes: Annotated[int, Meta(ge=1), "Arrays of so many bytes go by the store."] = 2**20
    ttl_s: Annotated[
        int, Meta(ge=1), "Time after which the store forgets what nobody has fetched, s."
    ] = 60


# Pages from elsewhere ---------------------------------------------------------------------------


ANY_ORIGIN = "*"
_ORIGIN = re.compile(r"https?://[^/?#\s@]+")


class CorsConfig(Struct, frozen=True, kw_only=True):
    """`cors`: web pages from elsewhere."""

    origins: Annotated[
        tuple[str, ...], "Pages that may ask, such as https://app.example.com; *: any; empty: none."
    ] = ()
    headers: Annotated[tuple[str, ...], "Headers that they may send, beside the usual ones."] = ()
    credentials: Annotated[bool, "They may send cookies and certificates; not with *."] = False
    max_age_s: Annotated[
        int, Meta(ge=0), "Seconds for which browsers remember that they may ask."
    ] = 600


def fault_of_cors(cors: CorsConfig) -> str:
    """Return what is wrong with the section; "": nothing."""
    for origin in cors.origins:
        if origin != ANY_ORIGIN and not _ORIGIN.fullmatch(origin):
            return f"cors.origins: {origin!r} is no origin, such as https://app.example.com"
    if cors.credentials and ANY_ORIGIN in cors.origins:
        return "cors.credentials: any page could ask in the name of who looks at it: name origins"
    return ""


# Parts of v2 that are for some ------------------------------------------------------------------


Api = Literal[
    "health",
    "metadata",
    "inference",
    "shared-memory",
    "model-config",
    "model-repository",
    "statistics",
    "trace",
    "logging",
]
"""Part of the v2 protocol, by Triton's name."""


class RestrictionConfig(Struct, frozen=True, kw_only=True):
    """Some parts, and the header that opens them."""

    apis: Annotated[tuple[Api, ...], "Parts of the v2 protocol, each in one entry at most."]
    header: Annotated[str, "Name of the header."]
    value: Annotated[str, Masked(), "What its callers know."]


class RestrictionsConfig(Struct, frozen=True, kw_only=True):
    """`restricted_apis`: what is restricted over HTTP, and what over gRPC."""

    http: Annotated[tuple[RestrictionConfig, ...], "Restrictions of the HTTP port."] = ()
    grpc: Annotated[tuple[RestrictionConfig, ...], "Restrictions of the gRPC port."] = ()


# Ray --------------------------------------------------------------------------------------------


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


# Numbers of workers that change -----------------------------------------------------------------


class ElasticConfig(Struct, frozen=True, kw_only=True):
    """`op.<name>.elastic`: when workers are added and taken away."""

    utilization: Annotated[
        float, Meta(gt=0, le=1), "Share of the workers that is to be busy: more add workers."
    ] = 0.8
    max_wait_ms: Annotated[
        int, Meta(ge=1), "What waits is to be begun within that time, ms: longer adds workers."
    ] = 100
    idle_s: Annotated[
        float, Meta(gt=0), "Workers that were not needed for so long are taken away, s."
    ] = 60.0


def bounds_of(op: OpConfig) -> tuple[int, int] | None:
    """Return the fewest and the most workers of an Op; None: there are always `concurrency`."""
    if op.min_workers is None and op.max_workers is None:
        return None
    lowest = 1 if op.min_workers is None else op.min_workers
    return lowest, op.concurrency if op.max_workers is None else op.max_workers


def fault_of_bounds(op: OpConfig) -> str:
    """Return what is wrong with an Op's bounds; "": nothing."""
    bounds = bounds_of(op)
    if bounds is None:
        return ""
    lowest, highest = bounds
    if lowest > highest:
        return f"min_workers: expected {highest} at most, as max_workers says, found {lowest}"
    if not lowest <= op.concurrency <= highest:
        return (
            f"concurrency: expected {max(1, lowest)} to {highest}, as min_workers and max_workers"
            f" say, found {op.concurrency}: so many there are at the start"
        )
    return ""


# Ragged inputs ----------------------------------------------------------------------------------


Names = Annotated[tuple[str, ...], Meta(min_length=1)]
Source = Annotated[tuple[str, ...], Meta(min_length=1, max_length=1)]

BatchInputKind = Literal[
    "BATCH_ELEMENT_COUNT",
    "BATCH_ACCUMULATED_ELEMENT_COUNT",
    "BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO",
    "BATCH_MAX_ELEMENT_COUNT_AS_SHAPE",
    "BATCH_ITEM_SHAPE",
    "BATCH_ITEM_SHAPE_FLATTEN",
]


class BatchInputConfig(Struct, frozen=True, kw_only=True):
    """`op.<name>.batch_input`: an array that says how an input of a batch is made up."""

    kind: Annotated[BatchInputKind, "What it says of the requests' arrays: sizes, or shapes."]
    target_name: Annotated[Names, "Names by which `process` is fed it."]
    data_type: Annotated[Literal["TYPE_INT32", "TYPE_FP32"], "Type of its numbers."]
    source_input: Annotated[Source, "The input that it is about."]


class BatchOutputConfig(Struct, frozen=True, kw_only=True):
    """`op.<name>.batch_output`: a flat output that is cut by the shapes of an input."""

    kind: Annotated[
        Literal["BATCH_SCATTER_WITH_INPUT_SHAPE"], "Each request gets the shape of its input."
    ] = "BATCH_SCATTER_WITH_INPUT_SHAPE"
    target_name: Annotated[Names, "Names by which `process` returns it."]
    source_input: Annotated[Source, "The input whose shapes it has."]


def fault_of_ragged(
    inputs: Sequence[str],
    batch_inputs: Sequence[BatchInputConfig],
    batch_outputs: Sequence[BatchOutputConfig],
) -> str:
    """Return what is wrong with the names of an Op's ragged batches, by its key; "": nothing."""
    made = Counter(name for batch_input in batch_inputs for name in batch_input.target_name)
    cut = Counter(name for batch_output in batch_outputs for name in batch_output.target_name)
    for key, counts in (("batch_input", made), ("batch_output", cut)):
        twice = [name for name, count in counts.items() if count > 1]
        if twice:
            return f"{key}: {twice[0]!r} is there twice"
    both = [name for name in inputs if name in made]
    return f"batch_input: {both[0]!r} is sent by callers: allow_ragged_batch has it" if both else ""
