"""What a request has in shared memory, read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pipeline.errors import TooLargeError
from pipeline.frontends.v2.errors import V2Error
from pipeline.frontends.v2.shared_regions import Region, SharedRegions, opened
from pipeline.proto.slices import Limits
from pipeline.proto.v2.codec import InferRequest, SharedInput, SharedPlace

LIMITS = Limits(message_bytes=8)


@pytest.fixture
def regions(tmp_path: Path) -> SharedRegions:
    """Regions with one of 16 bytes, `mine`."""
    (tmp_path / "key").write_bytes(bytes(range(16)))
    regions = SharedRegions("", str(tmp_path))
    regions.register(Region("mine", "key", 0, 16))
    return regions


def request_of(*sizes: int) -> InferRequest:
    shared = {
        f"x{index}": SharedInput("UINT8", [size], SharedPlace("mine", 0, size))
        for index, size in enumerate(sizes)
    }
    return InferRequest("m", shared=shared)


@pytest.mark.parametrize("sizes", [(8,), (4, 4), (0, 8)])
def test_inputs_may_be_as_large_as_a_message(regions: SharedRegions, sizes: tuple[int]) -> None:
    request = opened(request_of(*sizes), regions, LIMITS)
    assert not request.shared
    for size, array in zip(sizes, request.inputs.values(), strict=True):
        np.testing.assert_array_equal(array, np.arange(size, dtype=np.uint8))


@pytest.mark.parametrize("sizes", [(9,), (5, 4), (8, 1), (3, 3, 3)])
def test_no_more_than_the_limit_is_read(
    regions: SharedRegions, sizes: tuple[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []

    def count(name: str, offset: int, byte_size: int) -> bytearray:
        read.append(byte_size)
        return bytearray(byte_size)

    monkeypatch.setattr(regions, "read", count)
    with pytest.raises(TooLargeError, match=r"9 bytes of shared memory .* max_message_bytes \(8\)"):
        opened(request_of(*sizes), regions, LIMITS)
    assert sum(read) <= LIMITS.message_bytes


def test_an_offset_outside_the_region_is_reported_first(regions: SharedRegions) -> None:
    with pytest.raises(V2Error, match="Invalid offset \\+ byte size"):
        opened(request_of(17), regions, LIMITS)
