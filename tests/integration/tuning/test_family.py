"""CPU time and memory of a process and its descendants."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from pipeline.system.processes import family_of


def test_a_process_counts_with_its_children():
    alone = family_of(os.getpid())
    program = "import sys; taken = bytearray(b'x') * 2**25; print(flush=True); sys.stdin.read()"
    child = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with child:
        child.stdout.readline()
        together = family_of(os.getpid())
        child.stdin.close()
    assert together.each_mb > 32
    assert together.memory_mb > alone.each_mb + 32
    assert together.cpu_s >= alone.cpu_s > 0


def test_an_ended_process_is_an_error():
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        pass
    with pytest.raises(ProcessLookupError):
        family_of(child.pid)
