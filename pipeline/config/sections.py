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
    """Return the default address of servers."""
    return _hosts[-1]


def listen_as_the_predecessor() -> None:
    """Make all addresses the default, as the predecessor's scripts expect."""
    _hosts[:] = [ANY]


Count = Annotated[int, Meta(ge=0)]


class NeedConfig(Struct, frozen=True, kw_only=True):
    """One resource that a worker needs while it runs a batch."""

    name: Annotated[str, "Name of the resource."]
    count: Annotated[Count, "Amount that is needed."]
    is_global: Annotated[
        bool,
        Alias("global"),
        "True: all devices share the resource; False: each device has its own.",
    ] = False


class NeedsConfig(Struct, frozen=True, kw_only=True):
    """Needs of some of an Op's workers."""

    resources: Annotated[tuple[NeedConfig, ...], "Resources that one worker needs."] = ()
    priority: Annotated[Count, "Weight: a worker gets 1/priority of the chances; 0: 1."] = 1
    workers: Annotated[Count, "Number of workers with these needs; 0: all remaining ones."] = 0
    device: Annotated[Count, "Number of the device that they use."] = 0


class ResourceConfig(Struct, frozen=True, kw_only=True):
    """One resource of the server."""

    name: Annotated[str, "Name of the resource."]
    count: Annotated[Count, "Amount that exists."]
    device: Annotated[int, Meta(ge=-1), "Number of the device that has it; -1: each device."] = -1


class RateLimitConfig(Struct, frozen=True, kw_only=True):
    """`rate_limit`: whether workers wait for resources, and how much there is of these."""

    mode: Annotated[
        Literal["off", "execution_count"],
        "off: no waiting; execution_count: the worker with the fewest runs, weighted by priority, "
        "goes first.",
    ] = "off"
    resources: Annotated[
        tuple[ResourceConfig, ...],
        "Amount of each resource; empty: as much as the most demanding worker needs.",
    ] = ()


# Stores of large inputs -------------------------------------------------------------------------


class InputStoreConfig(Struct, frozen=True, kw_only=True):
    """`op.<name>.input_store`: how large inputs get to a pipeline at `server_endpoints`."""

    url: Annotated[
        str | None, "The payload_store of that pipeline; absent: inputs are in the requests."
    ] = None
    from_bytes: Annotated[
        int, Meta(ge=1), "Minimum size of an array that goes through the store, bytes."
    ] = 2**20
    ttl_s: Annotated[int, Meta(ge=1), "Lifetime of an input in the store, s."] = 60


# Pages from elsewhere ---------------------------------------------------------------------------


ANY_ORIGIN = "*"
_ORIGIN = re.compile(r"https?://[^/?#\s@]+")


class CorsConfig(Struct, frozen=True, kw_only=True):
    """`cors`: web pages from elsewhere."""

    origins: Annotated[
        tuple[str, ...], "Allowed origins, such as https://app.example.com; *: any; empty: none."
    ] = ()
    headers: Annotated[
        tuple[str, ...], "Allowed request headers in addition to the usual ones."
    ] = ()
    credentials: Annotated[bool, "Allow cookies and client certificates; not with origin *."] = (
        False
    )
    max_age_s: Annotated[int, Meta(ge=0), "Time for which browsers remember the permission, s."] = (
        600
    )


def fault_of_cors(cors: CorsConfig) -> str:
    """Return the fault of the section; "" without one."""
    for origin in cors.origins:
        if origin != ANY_ORIGIN and not _ORIGIN.fullmatch(origin):
            return f"cors.origins: {origin!r} is not an origin, such as https://app.example.com"
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

    apis: Annotated[tuple[Api, ...], "Parts of the v2 protocol; each part is in at most one entry."]
    header: Annotated[str, "Name of the header."]
    value: Annotated[str, Masked(), "Secret value of the header."]


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
        "Address of the cluster; auto: a cluster on this machine, otherwise a new one; local: a "
        "new one.",
    ] = "auto"
    num_cpus: Annotated[
        int | None, Meta(ge=1), "CPUs of a new cluster; absent: those of the machine."
    ] = None
    object_store_mib: Annotated[
        int | None, Meta(ge=80), "Object store of a new cluster, MiB; absent: Ray chooses."
    ] = None
    working_dir: Annotated[
        str | None,
        "Folder with modules that is sent to the nodes; absent: the nodes have the modules.",
    ] = None
    start_timeout_s: Annotated[
        float, Meta(gt=0), "Maximum wait at the start for a node with room for an actor, s."
    ] = 120.0


class RayOpConfig(Struct, frozen=True, kw_only=True):
    """`op.<name>.ray`: what each of its actors needs, and where it is put."""

    num_cpus: Annotated[Share, "CPUs that one actor reserves; fractions are allowed."] = 1.0
    num_gpus: Annotated[Share, "GPUs that one actor reserves; fractions are allowed."] = 0.0
    resources: Annotated[
        Mapping[str, float], "Custom Ray resources that one actor reserves, by name."
    ] = {}
    placement: Annotated[
        Literal["any", "spread", "pack"],
        "spread: on as many nodes as possible; pack: on as few as possible; any: Ray chooses.",
    ] = "any"
    near: Annotated[
        str | None, "Op whose nodes are preferred, for large data between the two Ops."
    ] = None
    model_from: Annotated[
        Literal["path", "store"],
        "path: each node has the model at the same path; store: the server sends the model.",
    ] = "path"


# Numbers of workers that change -----------------------------------------------------------------


class ElasticConfig(Struct, frozen=True, kw_only=True):
    """`op.<name>.elastic`: when workers are added and taken away."""

    utilization: Annotated[
        float, Meta(gt=0, le=1), "Target share of busy workers; a higher share adds workers."
    ] = 0.8
    max_wait_ms: Annotated[
        int,
        Meta(ge=1),
        "Target for the time a request waits for a worker, ms; a longer wait adds workers.",
    ] = 100
    idle_s: Annotated[
        float, Meta(gt=0), "A worker that was not needed for this time is removed, s."
    ] = 60.0


def bounds_of(op: OpConfig) -> tuple[int, int] | None:
    """Return the limits of an Op's number of workers; None if it is always `concurrency`."""
    if op.min_workers is None and op.max_workers is None:
        return None
    lowest = 1 if op.min_workers is None else op.min_workers
    return lowest, op.concurrency if op.max_workers is None else op.max_workers


def fault_of_bounds(op: OpConfig) -> str:
    """Return the fault of an Op's bounds; "" without one."""
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

    kind: Annotated[
        BatchInputKind, "What the array describes: sizes or shapes of the requests' arrays."
    ]
    target_name: Annotated[Names, "Names of the array in the input of process()."]
    data_type: Annotated[Literal["TYPE_INT32", "TYPE_FP32"], "Type of its numbers."]
    source_input: Annotated[Source, "The input that it describes."]


class BatchOutputConfig(Struct, frozen=True, kw_only=True):
    """`op.<name>.batch_output`: a flat output that is cut by the shapes of an input."""

    kind: Annotated[
        Literal["BATCH_SCATTER_WITH_INPUT_SHAPE"],
        "Each request gets a part with the shape of its input.",
    ] = "BATCH_SCATTER_WITH_INPUT_SHAPE"
    target_name: Annotated[Names, "Names of the outputs of process() that are split."]
    source_input: Annotated[Source, "The input whose shapes are used."]


def fault_of_ragged(
    inputs: Sequence[str],
    batch_inputs: Sequence[BatchInputConfig],
    batch_outputs: Sequence[BatchOutputConfig],
) -> str:
    """Return the fault of the names of an Op's ragged batches, with its key; "" without one."""
    made = Counter(name for batch_input in batch_inputs for name in batch_input.target_name)
    cut = Counter(name for batch_output in batch_outputs for name in batch_output.target_name)
    for key, counts in (("batch_input", made), ("batch_output", cut)):
        twice = [name for name, count in counts.items() if count > 1]
        if twice:
            return f"{key}: {twice[0]!r} is there twice"
    both = [name for name in inputs if name in made]
    return f"batch_input: {both[0]!r} is sent by callers: allow_ragged_batch has it" if both else ""
