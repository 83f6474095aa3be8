"""Standard streams that are closed, in memory, full, or without a reader."""

from __future__ import annotations

import io
import os
import subprocess
import sys

import pytest

from pipeline.system.stdio import write_out

OCCUPIES = """
import os
from pipeline.system.stdio import ensure_stdio
before = [os.path.exists(f"/proc/self/fd/{n}") for n in range(3)]
ensure_stdio()
ensure_stdio()
found = [os.readlink(f"/proc/self/fd/{n}") for n in range(3)]
assert before == [False, True, False], before
assert (found[0], found[2]) == ("/dev/null", "/dev/null"), found
assert os.get_inheritable(2)
assert os.open("/dev/zero", os.O_RDONLY) > 2
os.write(1, b"well")
"""


def test_missing_descriptors_are_occupied_and_the_others_left_alone():
    command = ["sh", "-c", 'exec "$@" <&- 2>&-', "sh", sys.executable, "-c", OCCUPIES]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=False)
    assert (done.returncode, done.stdout) == (0, b"well")


def test_text_is_written_past_the_buffer():
    reader, writer = os.pipe()
    with open(reader, encoding="utf-8") as read, open(writer, "w", encoding="utf-8") as stream:
        stream.write("later\n")
        write_out(stream, "grün \udc80\n")
        assert read.readline() == "grün \\udc80\n"


def test_unread_output_is_not_buffered_until_the_end():
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w", encoding="utf-8") as stream, pytest.raises(BrokenPipeError):
        write_out(stream, "x\n")  # closing the stream raises nothing: there is nothing in it


def test_a_stream_in_memory_is_written_to_as_any_other():
    stream, binary = io.StringIO(), io.BytesIO()
    for item in (stream, io.TextIOWrapper(binary, write_through=True)):
        write_out(item, "x\n")
    assert (stream.getvalue(), binary.getvalue()) == ("x\n", b"x\n")


@pytest.mark.parametrize("make", [io.StringIO, lambda: io.TextIOWrapper(io.BytesIO())])
def test_a_closed_stream_raises(make):
    stream = make()
    stream.close()
    with pytest.raises(ValueError, match="closed"):
        write_out(stream, "x\n")
