"""The files, threads and memory that a process and its descendants hold."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from doubles import wait_until

from benchmarks.family import holdings_of, usage_of

MIB = 2**20


# A process, its child, and a grandchild that is orphaned; all have 1 MiB of memory of one file.
FAMILY = f"""
import os, signal
memory = os.memfd_create("benchmark")
os.write(memory, bytes({MIB}))
if not os.fork():
    if not os.fork():
        signal.pause()
    os._exit(0)
os.wait()
if os.fork():
    print("ready", flush=True)
signal.pause()
"""


@pytest.fixture
def family() -> Iterator[int]:
    """The pid of a process that leads a session and has a child and an orphan in it."""
    process = subprocess.Popen(
        [sys.executable, "-c", FAMILY], stdout=subprocess.PIPE, start_new_session=True
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        yield process.pid
    finally:
        subprocess.run(["kill", "-KILL", "--", f"-{process.pid}"], check=True)
        process.communicate()


def test_a_family_is_counted_with_its_orphans_and_its_shared_memory_once(family: int) -> None:
    held = holdings_of(family)

    assert held.processes == 3
    assert held.shared_bytes == MIB
    assert held.descriptors >= 3 * 4  # the standard ones and the memory
    assert held.private_bytes > 3 * MIB  # an interpreter each
    assert usage_of(family).rss_bytes > 3 * MIB


def test_an_ended_process_holds_nothing() -> None:
    process = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
    process.send_signal(signal.SIGKILL)
    process.wait()
    wait_until(lambda: not Path(f"/proc/{process.pid}").exists())

    assert holdings_of(process.pid).processes == 0
