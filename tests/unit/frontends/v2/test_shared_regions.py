"""Shared memory of callers: what may be registered, and what is read and written of it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.frontends.v2.errors import V2Error, V2Status
from pipeline.frontends.v2.shared_regions import Region, SharedRegions

BYTES = bytes(range(64))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    result = tmp_path / "shm"
    result.mkdir()
    (result / "mine_a").write_bytes(BYTES)
    (result / "other").write_bytes(BYTES)
    (tmp_path / "mine_outside").write_bytes(BYTES)
    return result


@pytest.fixture
def regions(folder: Path) -> SharedRegions:
    return SharedRegions("mine_", str(folder))


def refused(call: Callable[[], object]) -> tuple[V2Status, str]:
    with pytest.raises(V2Error) as caught:
        call()
    return caught.value.kind, str(caught.value)


def test_a_region_is_read_and_written_from_its_offset(regions: SharedRegions, folder: Path) -> None:
    regions.register(Region("in", "/mine_a", 16, 32))
    assert regions.read("in", 4, 8) == BYTES[20:28]
    regions.write("in", 0, 8, b"abc", "y")
    assert (folder / "mine_a").read_bytes() == BYTES[:16] + b"abc" + BYTES[19:]


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("/other", "as the key does not begin with 'mine_'"),
        ("///", "invalid shm key '///'"),
        ("..", "invalid shm key '..'"),
        ("/../mine_outside", "invalid shm key '/../mine_outside'"),
        ("mine_/../other", "invalid shm key 'mine_/../other'"),
        ("mine_a\0", "invalid shm key"),
    ],
)
def test_a_key_is_one_name_below_the_prefix(regions: SharedRegions, key: str, text: str) -> None:
    kind, said = refused(lambda: regions.register(Region("in", key, 0, 8)))
    assert kind is V2Status.INVALID
    assert text in said
    assert not regions.status()


def test_links_folders_and_pipes_are_not_regions(regions: SharedRegions, folder: Path) -> None:
    (folder / "mine_link").symlink_to(folder / "other")
    (folder / "mine_folder").mkdir()
    os.mkfifo(folder / "mine_pipe")
    for key in ("mine_link", "mine_folder", "mine_gone"):
        text = f"Unable to open shared memory region: '{key}'"
        refusal = refused(lambda key=key: regions.register(Region("in", key, 0, 0)))  # type: ignore[misc]
        assert refusal == (V2Status.INTERNAL, text)
    text = "failed to register shared memory region 'in': invalid args"
    refusal = refused(lambda: regions.register(Region("in", "mine_pipe", 0, 0)))
    assert refusal == (V2Status.INVALID, text)


@pytest.mark.parametrize(("offset", "size"), [(0, 65), (60, 5), (-1, 4), (0, -1), (2**64, 0)])
def test_a_region_outside_its_memory_is_refused(
    regions: SharedRegions, offset: int, size: int
) -> None:
    text = "failed to register shared memory region 'in': invalid args"
    refusal = refused(lambda: regions.register(Region("in", "mine_a", offset, size)))
    assert refusal == (V2Status.INVALID, text)


@pytest.mark.parametrize(
    ("offset", "size", "text"),
    [
        (32, 0, "Invalid offset for shared memory region: 'in'"),
        (-1, 2, "Invalid offset for shared memory region: 'in'"),
        (30, 3, "Invalid offset + byte size for shared memory region: 'in'"),
        (0, -1, "Invalid offset + byte size for shared memory region: 'in'"),
        (
            1,
            2**64 - 1,
            "Integer overflow detected: byte_size (18446744073709551615) + offset (1) exceeds "
            "maximum value (18446744073709551615) for region 'in'",
        ),
    ],
)
def test_only_bytes_of_the_region_are_read_or_written(
    regions: SharedRegions, offset: int, size: int, text: str
) -> None:
    regions.register(Region("in", "mine_a", 0, 32))
    assert refused(lambda: regions.read("in", offset, size)) == (V2Status.INVALID, text)
    assert refused(lambda: regions.write("in", offset, size, b"", "y")) == (V2Status.INVALID, text)


def test_an_output_longer_than_its_region_is_not_written(
    regions: SharedRegions, folder: Path
) -> None:
    regions.register(Region("out", "mine_a", 0, 32))
    kind, text = refused(lambda: regions.write("out", 0, 2, b"abc", "y"))
    assert kind is V2Status.INTERNAL
    assert text == (
        "shared memory size specified with the request for output 'y' (2 bytes) should be at least "
        "3 bytes to hold the results"
    )
    assert (folder / "mine_a").read_bytes() == BYTES


def test_memory_that_was_cut_short_is_an_error_and_does_not_grow(
    regions: SharedRegions, folder: Path
) -> None:
    regions.register(Region("in", "mine_a", 0, 64))
    os.truncate(folder / "mine_a", 16)
    reported = V2Status.INVALID, "Invalid shared memory region: 'in'"
    assert refused(lambda: regions.read("in", 8, 16)) == reported
    assert refused(lambda: regions.write("in", 8, 16, b"x" * 16, "y")) == reported
    assert (folder / "mine_a").stat().st_size == 16


def test_unlinked_memory_stays_until_it_is_unregistered(
    regions: SharedRegions, folder: Path
) -> None:
    regions.register(Region("in", "mine_a", 0, 64))
    (folder / "mine_a").unlink()
    assert regions.read("in", 0, 64) == BYTES
    regions.unregister("in")
    text = "Unable to find shared memory region: 'in'"
    assert refused(lambda: regions.read("in", 0, 1)) == (V2Status.NOT_FOUND, text)


def test_status_lists_by_name_and_unregister_takes_one_or_all(regions: SharedRegions) -> None:
    first, second = Region("a", "mine_a", 0, 8), Region("b", "/mine_a", 8, 8)
    regions.register(second)
    regions.register(first)
    text = "shared memory region 'a' already in manager"
    assert refused(lambda: regions.register(first)) == (V2Status.ALREADY_EXISTS, text)
    assert regions.status() == [first, second]
    assert regions.status("b") == [second]
    regions.unregister("nope")
    regions.unregister("a")
    text = "Unable to find system shared memory region: 'a'"
    assert refused(lambda: regions.status("a")) == (V2Status.NOT_FOUND, text)
    regions.unregister()
    assert not regions.status()


def test_every_descriptor_is_closed(regions: SharedRegions, folder: Path) -> None:
    def held() -> list[str]:
        links = []
        for item in os.listdir("/proc/self/fd"):
            try:
                links.append(os.readlink(f"/proc/self/fd/{item}"))
            except FileNotFoundError:
                continue  # that of the listing
        return [link for link in links if link.startswith(str(folder))]

    refused(lambda: regions.register(Region("in", "mine_a", 0, 65)))
    assert not held()
    regions.register(Region("in", "mine_a", 0, 8))
    regions.read("in", 0, 8)
    refused(lambda: regions.write("in", 0, 1, b"ab", "y"))
    assert len(held()) == 1
    regions.unregister()
    assert not held()


def test_without_permission_no_region_is_registered(folder: Path) -> None:
    regions = SharedRegions(None, str(folder))
    kind, text = refused(lambda: regions.register(Region("in", "mine_a", 0, 8)))
    assert kind is V2Status.UNSUPPORTED
    assert text.startswith("Client shared memory is disabled")
    assert refused(regions.unregister)[0] is V2Status.UNSUPPORTED
    assert regions.status() == []


def test_a_region_that_a_request_needs_leaves_with_it(regions: SharedRegions) -> None:
    regions.register(Region("in", "mine_a", 0, 8))
    with regions.held(["in"]):
        regions.unregister("in")
        assert [item.name for item in regions.status()] == ["in"]
        assert regions.read("in", 0, 8) == BYTES[:8]
        regions.write("in", 0, 8, b"abc", "y")
        with regions.held(["in"]):
            """Others may still have it."""
        kind, _ = refused(lambda: regions.register(Region("in", "mine_a", 0, 8)))
        assert kind is V2Status.ALREADY_EXISTS
    assert regions.status() == []
    regions.register(Region("in", "mine_a", 0, 8))


def test_no_region_is_held_if_one_is_missing(regions: SharedRegions) -> None:
    regions.register(Region("in", "mine_a", 0, 8))
    with pytest.raises(V2Error, match="'out'"), regions.held(["in", "out"]):
        """It is not there."""
    regions.unregister("in")
    assert regions.status() == []


def test_tritons_own_regions_are_reserved(regions: SharedRegions) -> None:
    kind, text = refused(
        lambda: regions.register(Region("in", "//triton_python_backend_shm_region_1", 0, 8))
    )
    assert kind is V2Status.INVALID
    assert "contains the reserved prefix 'triton_python_backend_shm_region_'" in text
