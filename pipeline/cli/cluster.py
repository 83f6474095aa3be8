"""`pipeline cluster`: a service as a fleet of replicas on a Ray cluster."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from pipeline.cli.parsing import amount, at_least_1, command_parser, count, fails
from pipeline.cluster.bundle import bundle_of
from pipeline.cluster.edge import Edge
from pipeline.cluster.fleet import FleetRelease, FleetView
from pipeline.cluster.overview import Overview, summary
from pipeline.cluster.ray_fleet import RayFleets, library_version
from pipeline.errors import ConfigError, InitError, PipelineError

_LOOK_S = 0.5
_OTHERS = "another command has changed the fleet meanwhile: see pipeline cluster status"

Work = Callable[[argparse.Namespace, RayFleets], int]


def cluster(arguments: Sequence[str]) -> int:
    """Run `cluster up`, `update` or another of its commands; return the exit status."""
    options = cluster_parser().parse_args(list(arguments))
    try:
        if options.command == "local":
            return local(options)
        work: Work = options.work
        fleets = RayFleets(options.address)
        try:
            return work(options, fleets)
        finally:
            fleets.close()
    except PipelineError as error:
        return fails("cluster", str(error))


def cluster_parser() -> argparse.ArgumentParser:
    parser = command_parser(
        "cluster",
        "Serve a script on the nodes of a Ray cluster: whole servers as replicas, and in front of "
        "them an edge that finds the live ones. See docs/cluster.md.",
        "pipeline cluster local --nodes 2 &\n"
        "pipeline cluster up web_server.py --replicas 2\n"
        "pipeline cluster edge",
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND", dest="command")

    def add(name: str, work: Any, text: str) -> argparse.ArgumentParser:
        made = commands.add_parser(name, help=text, description=text)
        made.set_defaults(work=work)
        if work is not local:
            made.add_argument("--address", default="auto", help="of the cluster; default: auto")
            made.add_argument("--name", default="pipeline", help="of the fleet; default: pipeline")
        return made

    up_parser = add(
        "up", up, "start a fleet or change it to these settings, and wait until that is done"
    )
    _add_release(up_parser)
    up_parser.add_argument("--replicas", type=count, default=1, metavar="N", help="default: 1")
    _add_wait(up_parser)
    update_parser = add("update", up, "serve another version of the script, replica by replica")
    _add_release(update_parser)
    update_parser.set_defaults(replicas=None)
    _add_wait(update_parser)
    scale_parser = add("scale", scale, "change the number of replicas")
    scale_parser.add_argument("replicas", type=count, metavar="N")
    _add_wait(scale_parser)
    _add_wait(add("rollback", rollback, "go back to the previous release after a failed update"))
    status_parser = add("status", status, "print the state of the fleet")
    status_parser.add_argument("--json", action="store_true", help="print JSON")
    _add_wait(add("down", down, "end the fleet; each replica first answers its requests"))
    _add_edge(add("edge", edge, "take requests for the fleet, until Ctrl-C or SIGTERM"))
    local_parser = add("local", local, "start a Ray cluster on this machine, until Ctrl-C")
    local_parser.add_argument("--nodes", type=at_least_1, default=2, metavar="N", help="default: 2")
    local_parser.add_argument("--num-cpus", type=count, default=2, metavar="N", help="of each node")
    return parser


def _add_release(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("script", type=Path, metavar="SCRIPT")
    parser.add_argument(
        "--in-place", action="store_true", help="the folder is on all nodes, at the same path"
    )
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="a key of config.yml"
    )
    parser.add_argument("--num-cpus", type=amount, default=1.0, metavar="N", help="of a replica")
    parser.add_argument("--num-gpus", type=amount, default=0.0, metavar="N", help="of a replica")
    parser.add_argument(
        "--resource", action="append", default=[], metavar="NAME=N", help="of a node's own"
    )
    parser.add_argument(
        "--grace", type=amount, default=30.0, metavar="S", help="for a replica's last requests, s"
    )
    parser.add_argument(
        "--max-unavailable",
        type=count,
        default=0,
        metavar="N",
        help="replicas that may be missing during an update, where no node has room for one more",
    )


def _add_wait(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--no-wait", action="store_true", help="return at once")
    parser.add_argument("--timeout", type=amount, default=600.0, metavar="S", help="of waiting, s")


def _add_edge(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--listen", default="127.0.0.1:8080", help="HTTP; default 127.0.0.1:8080")
    parser.add_argument("--grpc-listen", default="", help="gRPC; absent: none")
    parser.add_argument(
        "--status",
        default="127.0.0.1:8090",
        metavar="ADDRESS",
        help='page and metrics; "": disabled',
    )
    parser.add_argument(
        "flags", nargs="*", metavar="FLAG", help="after --: further flags of the gateway"
    )


def up(options: argparse.Namespace, fleets: RayFleets) -> int:
    """Start a fleet, or change it, and wait until it has its target state."""
    if options.replicas is not None and options.replicas < 1:
        raise ConfigError(f"--replicas: expected at least 1, found {options.replicas}")
    release = FleetRelease(
        bundle_of(options.script, options.in_place),
        _pairs("--set", options.set),
        options.num_cpus,
        options.num_gpus,
        {name: _number(value) for name, value in _pairs("--resource", options.resource).items()},
        options.grace,
        options.max_unavailable,
    )
    fleet = fleets.find_or_make(options.name) if options.replicas else fleets.find(options.name)
    target = msgspec.msgpack.encode(release), options.replicas, library_version()
    fleets.ask(fleet, "want", *target)
    return _wait(options, fleets, fleet)


def rollback(options: argparse.Namespace, fleets: RayFleets) -> int:
    """Return to the release that still serves."""
    fleet = fleets.find(options.name)
    if not fleets.ask(fleet, "roll_back"):
        return fails("cluster", "no other release serves: start one by pipeline cluster update")
    return _wait(options, fleets, fleet)


def scale(options: argparse.Namespace, fleets: RayFleets) -> int:
    """Change the number of replicas."""
    if options.replicas < 1:
        raise ConfigError("scale: expected at least 1; pipeline cluster down ends the fleet")
    fleet = fleets.find(options.name)
    fleets.ask(fleet, "want", None, options.replicas, library_version())
    return _wait(options, fleets, fleet)


def status(options: argparse.Namespace, fleets: RayFleets) -> int:
    """Print the state of a fleet; return 0 if it has its target state."""
    view = view_of(fleets, fleets.find(options.name))
    if options.json:
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(view)).decode() + "\n")
        return 0 if view.is_reached else 1
    sys.stdout.write(f"{view.name}: {summary(view)}\n")
    for member in sorted(view.replicas, key=lambda replica: replica.number):
        phase = member.phase.value
        place = member.address or member.detail.rpartition("\n")[2]
        sys.stdout.write(
            f"  {member.number}: release {member.release}, {phase}, {member.node} {place}\n"
        )
    return 0 if view.is_reached else 1


def down(options: argparse.Namespace, fleets: RayFleets) -> int:
    """End all replicas, and the fleet."""
    fleet = fleets.find(options.name)
    fleets.ask(fleet, "want", None, 0, library_version())
    if options.no_wait:
        return 0
    if done := _wait(options, fleets, fleet):
        return done
    if not fleets.ask(fleet, "end"):
        return fails("cluster", _OTHERS)
    fleets.end(fleet)
    return 0


def edge(options: argparse.Namespace, fleets: RayFleets) -> int:
    """Serve a fleet's requests by a gateway."""
    fleet = fleets.find(options.name)
    flags = [f"--listen={options.listen}", *options.flags]
    if options.grpc_listen:
        flags.append(f"--grpc-listen={options.grpc_listen}")

    async def view() -> FleetView:
        nonlocal fleet
        try:
            return await asyncio.to_thread(view_of, fleets, fleet)
        except InitError:  # there may be a new fleet of this name
            fleet = await asyncio.to_thread(fleets.find, options.name)
            return await asyncio.to_thread(view_of, fleets, fleet)

    async def serve() -> None:
        stopped, loop = asyncio.Event(), asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stopped.set)
        made = Edge(view, flags)
        with _overview(options.status, lambda: made.last):
            sys.stdout.write(f"the edge of {options.name!r} listens on {options.listen}\n")
            sys.stdout.flush()
            await made.run(stopped)

    asyncio.run(serve())
    return 0


@contextlib.contextmanager
def _overview(address: str, view: Callable[[], FleetView | None]) -> Any:
    if not address:
        yield
        return
    host, _, port = address.rpartition(":")
    try:
        made = Overview(host.strip("[]"), int(port), view)
    except (OSError, ValueError) as error:
        raise ConfigError(f"--status {address}: {error}") from error
    made.start()
    try:
        yield
    finally:
        made.close()


def local(options: argparse.Namespace) -> int:
    """Start a Ray cluster of several nodes on this machine, for trials, and wait."""
    from pipeline.cluster.ray_fleet import LocalCluster

    signal.signal(signal.SIGTERM, signal.default_int_handler)  # from now on: no process may be left
    with LocalCluster(options.nodes, options.num_cpus) as address:
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # Ray has replaced the handler
        sys.stdout.write(
            f"a Ray cluster of {options.nodes} nodes is at {address}; Ctrl-C ends it\n"
        )
        sys.stdout.flush()
        with contextlib.suppress(KeyboardInterrupt):
            signal.pause()
    return 0


def view_of(fleets: RayFleets, fleet: Any) -> FleetView:
    """Return the state of a fleet."""
    return msgspec.json.decode(fleets.ask(fleet, "view"), type=FleetView)


def _wait(options: argparse.Namespace, fleets: RayFleets, fleet: Any) -> int:
    """Wait until a fleet has its target state, and print changes; return the exit status."""
    if options.no_wait:
        return 0
    ends, shown = time.monotonic() + options.timeout, ""
    wanted = view_of(fleets, fleet).wanted
    while True:
        view = view_of(fleets, fleet)
        if view.wanted != wanted:
            return fails("cluster", _OTHERS)
        text = summary(view)
        if text != shown:
            shown = text
            sys.stdout.write(f"{view.name}: {text}\n")
            sys.stdout.flush()
        if view.is_reached:
            return 0
        if view.is_stuck:
            return fails("cluster", f"the release fails:\n{view.reason}")
        if time.monotonic() >= ends:
            return fails("cluster", f"not complete after {options.timeout:g} s; it continues")
        time.sleep(_LOOK_S)


def _pairs(option: str, values: Sequence[str]) -> dict[str, str]:
    pairs = dict(pair.partition("=")[::2] for pair in values)
    if not all("=" in pair for pair in values):
        raise ConfigError(f"{option}: expected NAME=VALUE, found {' '.join(values)}")
    return pairs


def _number(text: str) -> float:
    try:
        return amount(text)
    except argparse.ArgumentTypeError as error:
        raise ConfigError(f"--resource: {error}") from None
