"""tune_malloc: counted in page faults, in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from pipeline.system.resources import _WHO_GETS_THEM

_COUNT = """
import resource, sys
from pipeline.system.resources import tune_malloc
if sys.argv[1] == "kept":
    tune_malloc()
faults = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_minflt
kept = bytearray(1 << 20)
before = faults()
for _ in range(200):
    first, second = bytearray(1 << 20), bytearray(1 << 20)
    del first, second
print(faults() - before)
"""


def faults(mode, **environment):
    clean = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    done = subprocess.run(
        [sys.executable, "-c", _COUNT, mode],
        env=clean | environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return int(done.stdout)


@pytest.mark.skipif(
    not hasattr(os, "confstr") or "glibc" not in os.confstr("CS_GNU_LIBC_VERSION"),
    reason="another C library",
)
def test_freed_megabytes_are_not_faulted_in_again():
    as_it_comes, kept = faults("as it comes"), faults("kept")
    assert kept < 2_000, "each page at most a few times"
    assert kept < as_it_comes


def test_settings_of_the_user_are_left_alone():
    assert faults("kept", MALLOC_TRIM_THRESHOLD_="65536") > 2_000


def test_a_number_of_arenas_of_the_user_leaves_the_rest_as_it_is():
    assert faults("kept", MALLOC_ARENA_MAX="1") < 2_000


_HUGE = """
import os, resource, sys
from pipeline.system.resources import run_on_huge_pages
run_on_huge_pages()
faults = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_minflt
before = faults()
block = bytearray(64 << 20)
print(os.getpid(), faults() - before, sys.argv[1], os.environ.get("GLIBC_TUNABLES", "none"))
"""


def started(**environment):
    """(is it the process that was started, page faults of 64 MiB, argument, tunables)."""
    clean = {name: value for name, value in os.environ.items() if "MALLOC" not in name}
    command = [sys.executable, "-c", _HUGE, "an argument"]
    with subprocess.Popen(command, env=clean | environment, stdout=subprocess.PIPE) as process:
        pid, count, *reported, tunables = process.stdout.read().decode().split()
    return int(pid) == process.pid, int(count), " ".join(reported), tunables


@pytest.mark.skipif(
    "[madvise]" not in (_WHO_GETS_THEM.read_text() if _WHO_GETS_THEM.exists() else "")
    or "glibc" not in os.confstr("CS_GNU_LIBC_VERSION"),
    reason="nobody, or everybody, gets huge pages here",
)
def test_a_program_runs_on_huge_pages_as_the_same_process():
    is_same, count, argument, tunables = started()
    assert (is_same, argument, tunables) == (True, "an argument", "none")
    assert count < 8_000, "64 MiB are 16,384 small pages"


def test_a_program_with_the_users_settings_runs_unchanged():
    text = "glibc.malloc.check=0"
    is_same, _, argument, tunables = started(GLIBC_TUNABLES=text)
    assert (is_same, argument, tunables) == (True, "an argument", text)
