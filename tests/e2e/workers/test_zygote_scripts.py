"""Zygotes of scripts: a parent that is killed, signals to its group, and spawn."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from doubles import wait_until
from zygote_children import living

# Parents of their own -----------------------------------------------------------------------

PARENT = """
import asyncio, os, signal, sys, time
from pipeline.workers.zygote.controller import Zygotes

def obey(sock, number):
    while question := sock.recv(100):
        if question == b"print and return":
            print("printed by a child")
            return
        sock.sendall(b"pong")

def other_fork():
    # A process that holds copies of all of the parent's sockets.
    if os.fork() == 0:
        signal.pause()
        os._exit(0)

async def ask(child):
    loop = asyncio.get_running_loop()
    await loop.sock_sendall(child.sock, b"ping")
    return await loop.sock_recv(child.sock, 100)

async def run():
    loop = asyncio.get_running_loop()
    zygotes.attach(loop)
    first = zygotes.start(0, 0, lambda child: None)
    await ask(first)
    os.kill(zygotes._zygotes[0].pid, signal.SIGKILL)  # from now on one of the two is a clone
    while first.state != "ended":
        await asyncio.sleep(0)
    children = [zygotes.start(0, i, lambda child: print(child.state)) for i in range(3)]
    for child in children:
        await ask(child)
    while any(child.pid is None for child in children):
        await asyncio.sleep(0)
    while len(zygotes._zygotes) < 2 or not all(z.is_ready for z in zygotes._zygotes):
        await asyncio.sleep(0)
    {then}

sys.stdout.write("begin ")
zygotes = Zygotes([obey])
asyncio.run(run())
"""
TELL = """
    print(*(z.pid for z in zygotes._zygotes), *(child.pid for child in children), flush=True)
    await asyncio.sleep(3600)
"""
SIGNAL_THE_GROUP = """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
        os.killpg(0, number)
    print(*[await ask(child) for child in children], flush=True)
    await zygotes.close(5.0)
"""


@pytest.mark.parametrize("with_a_fork", [False, True])
def test_no_process_outlives_a_killed_parent(tmp_path, with_a_fork):
    script = PARENT.format(then=("other_fork()" if with_a_fork else "pass") + TELL)
    with run_script(tmp_path, script) as parent:
        assert parent.stdout is not None
        pids = [int(word) for word in parent.stdout.readline().split()[1:]]
        assert len(living(pids)) == len(pids) == 5
        parent.kill()
        parent.wait()
        wait_until(lambda: not living(pids))


def test_signals_to_the_whole_group_do_not_end_children(tmp_path):
    with run_script(tmp_path, PARENT.format(then=SIGNAL_THE_GROUP)) as parent:
        printed, errors = parent.communicate()
    assert (parent.returncode, errors) == (0, "")
    assert printed == "begin b'pong' b'pong' b'pong'\n" + "ended\n" * 3, "and nothing twice"


LET_ONE_PRINT = """
    await loop.sock_sendall(children[0].sock, b"print and return")
    while children[0].state != "ended":
        await asyncio.sleep(0)
    await zygotes.close(5.0)
"""


def test_output_before_the_fork_and_of_a_child_is_printed_once(tmp_path):
    with run_script(tmp_path, PARENT.format(then=LET_ONE_PRINT)) as parent:
        printed, errors = parent.communicate()
    assert (parent.returncode, errors) == (0, "")
    assert printed == "begin printed by a child\n" + "ended\n" * 3


ORPHANS_ARE_OURS = """
    import ctypes
    ctypes.CDLL(None).prctl(36, ctypes.c_ulong(1))  # as for the first process of a container
    for zygote in list(zygotes._zygotes):
        os.kill(zygote.pid, signal.SIGSTOP)
    for zygote in list(zygotes._zygotes):
        os.kill(zygote.pid, signal.SIGKILL)
    while any(child.state != "ended" for child in children):
        await asyncio.sleep(0)
    await zygotes.close(5.0)
    print("left:", *open(f"/proc/self/task/{os.getpid()}/children").read().split(), flush=True)
"""


def test_orphans_are_reaped_by_a_parent_that_they_are_left_to(tmp_path):
    with run_script(tmp_path, PARENT.format(then=ORPHANS_ARE_OURS)) as parent:
        printed, errors = parent.communicate()
    assert (parent.returncode, errors) == (0, "")
    assert printed == "begin " + "ended\n" * 3 + "left:\n"


@contextlib.contextmanager
def run_script(folder: Path, text: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A script in a session of its own; nothing of that is left afterwards."""
    path = folder / "script.py"
    path.write_text(text)
    buffered = {key: value for key, value in os.environ.items() if key != "PYTHONUNBUFFERED"}
    script = subprocess.Popen(
        [sys.executable, str(path), *arguments],
        cwd=folder,
        env=buffered,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    with script:
        try:
            yield script
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(script.pid, signal.SIGKILL)


# Spawn --------------------------------------------------------------------------------------

UNGUARDED = """
import argparse, asyncio, os, pickle, sys, threading
from pipeline.workers.zygote.controller import Zygotes

print("imported", flush=True)
args = argparse.Namespace(word="shipped")
{extra}

class Payload:
    def __init__(self, text):
        self.text = text

class Worker:
    def __init__(self, word):
        self.word = word

    def __call__(self, sock, number):
        payload = pickle.loads(sock.recv(1000))
        here = os.path.basename(__file__)
        words = [payload.text, self.word, args.word, here, sys.argv[1], helper()]
        sock.sendall(pickle.dumps(Payload(" ".join(words))))

def helper():
    return str("numpy" in sys.modules)

async def run():
    loop = asyncio.get_running_loop()
    zygotes.attach(loop)
    child = zygotes.start(0, 0, lambda child: None)
    await loop.sock_sendall(child.sock, pickle.dumps(Payload("from the parent")))
    answer = pickle.loads(await loop.sock_recv(child.sock, 1000))
    print(type(answer) is Payload, answer.text)
    await zygotes.close(5.0)

worker = Worker("set")
worker.word = "later"
{before}
zygotes = Zygotes([worker], "spawn")
asyncio.run(run())
"""
UNRELATED = """
class CannotGo:
    left = (i for i in ())
"""


@pytest.mark.parametrize("extra", ["", UNRELATED])
def test_spawn_ships_classes_and_globals_of_an_unguarded_script(tmp_path, extra):
    script = UNGUARDED.format(extra=extra, before="")
    with run_script(tmp_path, script, "argument") as parent:
        printed, errors = parent.communicate()
    assert (parent.returncode, errors) == (0, "")
    answer = "True from the parent later shipped script.py argument False"
    assert printed == f"imported\n{answer}\n"


@pytest.mark.parametrize(
    ("before", "where"),
    [
        (
            "worker.parts = {'a': [(i for i in ())]}",
            r"workers\[0\]\.parts\['a'\]\[0\] \(generator\)",
        ),
        ("args.left = (i for i in ())", r"global args\.left \(generator\)"),
    ],
)
def test_an_object_that_spawn_cannot_send_is_named(tmp_path, before, where):
    script = UNGUARDED.format(extra="", before=before)
    with run_script(tmp_path, script, "argument") as parent:
        _, errors = parent.communicate()
    assert parent.returncode == 1
    last = errors.splitlines()[-1]
    assert last.startswith("pipeline.errors.InitError: ")
    assert "start_method: fork" in last
    assert re.search(where, last), last


def test_a_spawned_zygote_imports_no_heavy_modules():
    loaded = "import pipeline.workers.zygote.spawn, sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", loaded], capture_output=True, text=True)
    modules = {name.split(".")[0] for name in done.stdout.split()}
    assert "msgspec" in modules
    assert not modules & {"numpy", "grpc", "google", "dill", "uvloop", "yaml", "onnxruntime"}
