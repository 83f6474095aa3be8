"""The commands of `benchmarks.ray_nodes`: what an error says of a cluster that does not answer."""

from __future__ import annotations

import asyncio
import io
from unittest.mock import Mock

import pytest

from benchmarks import ray_nodes


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        (b"", "ended instead of the line 'done' for the command 'add'"),
        (b"dome\n", "answered 'dome' instead of the line 'done' for the command 'add'"),
        (None, "did not add in 0 s"),
    ],
)
def test_a_cluster_that_does_not_answer_is_an_error_with_its_log(monkeypatch, line, fault):
    monkeypatch.setattr(ray_nodes, "_MOST_S", 0.0 if line is None else 60.0)

    async def ask() -> None:
        output = asyncio.StreamReader()
        if line is not None:
            output.feed_data(line)
            output.feed_eof()
        nodes = ray_nodes.Nodes(Mock(stdout=output), io.BytesIO(b"written by Ray"))
        await nodes.answer("done", "add")

    with pytest.raises(RuntimeError) as error:
        asyncio.run(ask())
    assert str(error.value) == f"the cluster {fault}:\nwritten by Ray"
