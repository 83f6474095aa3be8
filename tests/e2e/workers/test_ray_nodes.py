"""Actors on several nodes of this machine: where they are put, and when there is no room."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

pytest.importorskip("ray")

from benchmarks.ray_nodes import nodes
from pipeline import Op, PipelineServer, RequestOp, ResponseOp
from pipeline.errors import InitError

pytestmark = [pytest.mark.cluster]


def chain_of(*names: str) -> Op:
    op: Op = RequestOp()
    for name in names:
        op = Op(name, op)
    return op


def server_of(last: Op, ops: dict[str, Any], **ray: Any) -> PipelineServer:
    server = PipelineServer("placed")
    server.set_response_op(ResponseOp(last))
    keys = {name: {"workers": "ray", **given} for name, given in ops.items()}
    server.prepare_server(yml_dict={"rpc_port": 0, "op": keys, "dag": {"ray": ray}})
    return server


def nodes_of(server: PipelineServer) -> dict[str, Sequence[str]]:
    ops = server.executor.executor.nodes.values()
    return {op.name: sorted(op.workers.nodes) for op in ops}  # type: ignore[attr-defined]


async def _placed() -> None:
    ops = {
        "wide": {"concurrency": 3, "ray": {"num_cpus": 0.1, "placement": "spread"}},
        "close": {"concurrency": 2, "ray": {"num_cpus": 0.1, "placement": "pack"}},
        "beside": {"concurrency": 2, "ray": {"num_cpus": 0.1, "near": "close"}},
    }
    async with server_of(chain_of(*ops), ops) as server:
        result = nodes_of(server)
        assert len(set(result["wide"])) == 3
        assert len({*result["close"], *result["beside"]}) == 1


async def _joined(made: Any) -> None:
    """Of four actors with a CPU each three find room; a node that joins has the fourth."""
    ops = {"many": {"concurrency": 3, "ray": {"num_cpus": 1}}}
    async with server_of(chain_of("many"), ops) as server:
        pool = next(iter(server.executor.executor.nodes.values())).workers
        adding = asyncio.ensure_future(pool.add([3]))  # type: ignore[attr-defined]
        await asyncio.sleep(2.0)
        assert (pool.count, adding.done()) == (3, False)
        await made.add()
        await adding
        assert pool.count == 4


async def _without_room() -> None:
    ops = {"none": {"ray": {"resources": {"unheard_of": 1}}}}
    refusal = r"0 of 1 actors .* needs num_cpus 1, unheard_of 1; there are \d+ nodes: .*CPU"
    with pytest.raises(InitError, match=refusal):
        async with server_of(chain_of("none"), ops, start_timeout_s=3.0):
            """It does not come up."""


def test_actors_are_placed_as_configured_and_start_when_there_is_room() -> None:
    async def all_of_it() -> None:
        async with nodes(3, 1) as made:
            await _placed()
            await _without_room()
            await _joined(made)

    asyncio.run(all_of_it())
