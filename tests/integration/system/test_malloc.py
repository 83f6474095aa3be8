"""tune_malloc: counted in page faults, in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

_COUNT = """
import resource, sys
from pipeline.system.malloc import tune_malloc
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
