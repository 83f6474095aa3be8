"""Payloads in shared memory, between processes."""

from __future__ import annotations

import os
import subprocess
import sys

import msgspec
import numpy as np
from garbage import fork
from same_payload import assert_same

from pipeline.workers.shm.arena import Arena, RegionAllocator
from pipeline.workers.shm.payload import (
    SerializedPayload,
    deserialize,
    serialize,
)

SCRIPT = """
import os, socket
import numpy as np, msgspec
from pipeline.workers.shm.payload import SerializedPayload, serialize, deserialize
from pipeline.workers.shm.arena import Arena, RegionAllocator

class Result:
    limit = 7
    def __init__(self, value): self.value = value

FACTOR = 3

arena = Arena()
region = arena.new_region()
here, there = socket.socketpair()
if not os.fork():
    memory = RegionAllocator(arena.view(region), region)
    answer = {
        "plain": Result(np.arange(100000)),
        "odd": (Result(1), lambda x: FACTOR * x, Result),
    }
    there.sendall(msgspec.msgpack.encode(serialize(answer, memory, arena)))
    os._exit(0)
serialized = msgspec.msgpack.decode(here.recv(100000), type=SerializedPayload)
os.wait()
answer = deserialize(serialized, arena)
assert type(answer["plain"]) is Result and answer["plain"].value.sum() == 4999950000
result, function, kind = answer["odd"]
assert type(result) is Result and kind is Result, "a class of __main__ is the one that is here"
FACTOR = 5
assert function(2) == 10, "globals are those of the script in the receiving process"
"""


def test_classes_of_an_unguarded_script_are_the_same_in_both_processes(tmp_path):
    script = tmp_path / "web_server.py"
    script.write_text(SCRIPT, encoding="utf-8")
    subprocess.run([sys.executable, "-W", "error", str(script)], check=True)


def test_a_forked_worker_opens_a_payload_of_the_server_and_answers():
    arena = Arena(2**22)
    own, workers = arena.new_region(), arena.new_region()
    memory = RegionAllocator(arena.view(own), own)
    question, answer = os.pipe(), os.pipe()
    pid = fork()
    if not pid:
        status = 1
        try:
            payload = deserialize(
                msgspec.msgpack.decode(os.read(question[0], 9999), type=SerializedPayload), arena
            )
            payload["x"] *= 2
            payload["picture"] = payload["picture"][::-1]
            memory = RegionAllocator(arena.view(workers), workers)
            os.write(answer[1], msgspec.msgpack.encode(serialize(payload, memory, arena)))
            status = 0
        finally:
            os._exit(status)
    payload = {"x": np.ones((300, 400), np.float32), "picture": bytes(range(256)) * 256, "n": 3}
    serialized = serialize(payload, memory, arena)
    os.write(question[1], msgspec.msgpack.encode(serialized))
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    answered = msgspec.msgpack.decode(os.read(answer[0], 9999), type=SerializedPayload)
    assert [block.region for block in serialized.buffers] == [own, own]
    assert [block.region for block in answered.buffers] == [workers, workers]
    expected = {"x": payload["x"] * 2, "picture": payload["picture"][::-1], "n": 3}
    assert_same(expected, deserialize(answered, arena))
    for end in (*question, *answer):
        os.close(end)
    arena.close()
