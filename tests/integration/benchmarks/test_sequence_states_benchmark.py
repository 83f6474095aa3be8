"""`python -m benchmarks.sequence_states`: its steps are taken, with and without a server."""

from __future__ import annotations

import asyncio

import pytest

from benchmarks.sequence_states import in_a_process, in_batches


@pytest.mark.parametrize("orders", [[[0]], [[0, 1], [2, 1]]])
def test_steps_in_batches(orders):
    assert in_batches(1024, 4, orders) > 0


def test_steps_in_a_process():
    assert asyncio.run(in_a_process(1024, 2, checkpoint=True)) > 0
