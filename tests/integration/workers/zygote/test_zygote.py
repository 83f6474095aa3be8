"""Zygotes start workers, and report their ends."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import threading
from pathlib import Path
from typing import Any, NoReturn

import pytest
import uvloop
from stepped_zygotes import KILLED
from zygote_children import obey, open_files, our_files, status_of

from pipeline.workers.zygote.controller import Child, Zygotes

# Starting -----------------------------------------------------------------------------------


@pytest.mark.parametrize("start_method", ["fork", "spawn"])
@pytest.mark.parametrize("new_loop", [asyncio.SelectorEventLoop, uvloop.new_event_loop])
def test_children_talk_over_their_sockets_and_know_their_numbers(
    make_family, start_method, new_loop
):
    family = make_family(start_method=start_method, new_loop=new_loop)
    children = [family.start(number=i) for i in range(3)]
    assert [child.state for child in children] == ["starting"] * 3
    assert [family.ask(child, "number") for child in children] == ["0", "1", "2"]
    family.until(lambda: all(child.state == "running" for child in children))
    assert len({child.pid for child in children}) == 3
    assert [child.number for child in children] == [0, 1, 2]
    assert not any(family.states.values()), "a start is not a change"


@pytest.mark.parametrize("start_method", ["fork", "spawn"])
def test_runtimes_are_imported_once_for_all_children(make_family, start_method):
    family = make_family(
        start_method=start_method, runtimes=["zygote_children:load_runtime", "nobody:here"]
    )
    loaded = [family.ask(family.start(), "loaded") for _ in range(3)]
    assert loaded == [f"[{family.pids[0]}]"] * 3, "what fails is the children's to tell"
    for _ in range(2):
        os.kill(family.pids[0], signal.SIGKILL)
        again = family.ask(family.start_until_it_runs(), "loaded")
        assert len(again.split()) == 1, "also when another zygote has taken its place"


@pytest.mark.parametrize("start_method", ["fork", "spawn"])
@pytest.mark.parametrize(
    ("runtime", "why"),
    [("load_with_thread", "it starts threads (1)"), ("load_and_end", "it ends the process")],
)
def test_a_module_that_cannot_be_forked_is_imported_by_each_child(
    make_family, caplog, start_method, runtime, why
):
    family = make_family(start_method=start_method, runtimes=[f"zygote_children:{runtime}"])
    children = [family.start() for _ in range(3)]
    assert [family.ask(child, "loaded") for child in children] == ["[]"] * 3
    assert caplog.messages == [f"each worker process imports zygote_children for itself: {why}"]


def test_a_child_runs_the_main_that_it_was_started_for(make_family):
    family = make_family(obey, lambda sock, number: sock.sendall(b"the other main"))
    assert family.hear(family.start(main=1)) == b"the other main"


def test_a_child_inherits_files_and_settings_of_the_user(make_family, tmp_path):
    (tmp_path / "words").write_text("one two")
    with open(tmp_path / "words") as words:
        family = make_family(lambda sock, number: sock.sendall(words.read().encode()))
        assert family.hear(family.start()) == b"one two"


def test_a_child_has_no_socket_but_its_own(make_family):
    before = sum(name.startswith("socket:") for name in open_files())
    family = make_family()
    children = [family.start_and_ask() for _ in range(2)]
    assert [family.ask(child, "sockets") for child in children] == [str(before + 1)] * 2
    assert [family.ask(child, "pidfds") for child in children] == ["0"] * 2


def test_a_child_of_a_clone_has_no_socket_but_its_own(make_family):
    before = sum(name.startswith("socket:") for name in open_files())
    family = make_family()
    for _ in range(2):
        pid = family.pids[0]
        os.kill(pid, signal.SIGKILL)
        family.until(lambda pid=pid: len(set(family.pids) - {pid}) == 2)
    child = family.start()
    assert family.ask(child, "sockets") == str(before + 1)
    assert family.ask(child, "pidfds") == "0"


def test_an_asyncio_loop_runs_in_a_child_forked_within_a_running_loop(make_family):
    async def make() -> Zygotes:
        return Zygotes([obey])

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        zygotes = runner.run(make())
    family = make_family()
    family.zygotes.close_now()
    family.zygotes = zygotes
    zygotes.attach(family.loop)
    assert family.ask(family.start(), "asyncio") == "ran"


def test_zygotes_forked_from_a_thread_give_children_a_main_thread(make_family):
    made: list[Zygotes] = []
    thread = threading.Thread(target=lambda: made.append(Zygotes([obey])), name="any")
    thread.start()
    thread.join()
    family = make_family()
    family.zygotes.close_now()
    (family.zygotes,) = made
    family.zygotes.attach(family.loop)
    child = family.start()
    assert family.ask(child, "thread") == "MainThread"
    assert family.ask(child, "is main") == "True"


def test_a_zygote_has_one_thread(make_family):
    release = threading.Event()
    thread = threading.Thread(target=release.wait)
    thread.start()
    try:
        family = make_family()
        family.start_and_ask()
        pid = family.pids[0]
        os.kill(pid, signal.SIGKILL)
        family.until(lambda: len(set(family.pids) - {pid}) == 2)
        assert [status_of(pid, "Threads") for pid in family.pids] == ["1", "1"]
        assert int(status_of("self", "Threads")) > 1
    finally:
        release.set()
        thread.join()


def test_the_pages_of_a_zygote_stay_shared(make_family):
    family = make_family()
    assert family.ask(family.start(), "is frozen") == "True"


def test_a_default_timeout_of_sockets_does_not_touch_ours(make_family):
    socket.setdefaulttimeout(0.001)
    try:
        family = make_family()
        child = family.start()
        assert family.ask(child, "timeout") == "0.001"
        for _ in range(3):  # each takes far longer than that timeout
            family.start_and_ask()
        assert family.ask(child, "ping") == "pong"
    finally:
        socket.setdefaulttimeout(None)


# Signals ------------------------------------------------------------------------------------


def test_handlers_and_masks_of_the_parent_are_not_inherited(make_family):
    before = signal.signal(signal.SIGUSR1, lambda number, frame: None)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})
    try:
        family = make_family()
        child = family.start()
        assert family.ask(child, "blocked") == "0"
        assert signal.SIGUSR2 in signal.pthread_sigmask(signal.SIG_BLOCK, ()), "the parent's stays"
        family.say(child, "terminate")
        family.until_ended(child)
        assert child.ending == "was killed by SIGUSR1"
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        signal.signal(signal.SIGUSR1, before)


def test_a_program_executed_by_a_child_has_the_default_handlers(make_family):
    family = make_family()
    assert family.ask(family.start(), "sh") == str(-signal.SIGINT)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_children_and_zygotes_live_on_when_they_are_interrupted(make_family, number):
    family = make_family()
    child = family.start_and_ask()
    for pid in (*family.pids, child.pid):
        os.kill(pid, number)
    assert family.ask(child, "ping") == "pong"
    assert family.ask(family.start(), "ping") == "pong"


# Endings ------------------------------------------------------------------------------------

ENDINGS = {
    "os._exit": "ended with exit code 3 (os._exit or sys.exit in user code)",
    "sys.exit": "ended with exit code 4 (os._exit or sys.exit in user code)",
    "sys.exit text": "ended with exit code 1 (os._exit or sys.exit in user code)",
    "sys.exit nothing": "ended with exit code 0 (os._exit or sys.exit in user code)",
    "return": "ended with exit code 0 (os._exit or sys.exit in user code)",
    "raise": "ended with exit code 1 (os._exit or sys.exit in user code)",
    "segfault": "was killed by SIGSEGV (a native crash)",
    "abort": "was killed by SIGABRT (a native crash)",
    "terminate": "was killed by SIGUSR1",
    "real time": f"was killed by signal {signal.SIGRTMIN + 3}",
}


@pytest.mark.parametrize("how", ENDINGS)
def test_the_ending_of_a_child_is_reported(make_family, how, capfd):
    family = make_family()
    child, neighbour = family.start_and_ask(), family.start_and_ask()
    family.say(child, how)
    family.until_ended(child)
    assert child.ending == ENDINGS[how]
    assert family.states[child] == ["ended"]
    assert family.ask(neighbour, "ping") == "pong"
    printed = capfd.readouterr().err
    assert ("LookupError: the user's own mistake" in printed) == (how == "raise")
    assert ("no more of this\n" in printed) == (how == "sys.exit text")


def test_a_killed_child_is_reported(make_family):
    family = make_family()
    child = family.start_and_ask()
    os.kill(child.pid, signal.SIGKILL)
    family.until_ended(child)
    assert child.ending == KILLED


def test_stops_and_continues_are_reported(make_family):
    family = make_family()
    child = family.start_and_ask()
    os.kill(child.pid, signal.SIGSTOP)
    family.until(lambda: child.state == "stopped")
    os.kill(child.pid, signal.SIGCONT)
    family.until(lambda: child.state == "running")
    assert family.states[child] == ["stopped", "running"]
    assert family.ask(child, "ping") == "pong"


def test_a_stopped_child_can_be_killed(make_family):
    family = make_family()
    child = family.start_and_ask()
    os.kill(child.pid, signal.SIGSTOP)
    family.until(lambda: child.state == "stopped")
    child.kill()
    family.until_ended(child)
    assert (family.states[child], child.ending) == (["stopped", "ended"], KILLED)


def test_a_child_can_be_killed_before_it_is_known_to_run(make_family):
    family = make_family()
    child = family.start()
    child.kill()
    family.until_ended(child)
    assert child.ending == KILLED
    assert family.hear(child) == b""


def test_a_second_kill_or_one_after_the_end_does_nothing(make_family):
    family = make_family()
    child, neighbour = family.start_and_ask(), family.start_and_ask()
    child.kill()
    child.kill()
    family.until_ended(child)
    child.kill()
    assert family.ask(neighbour, "ping") == "pong"
    assert family.states[child] == ["ended"]


def test_an_owner_that_raises_does_not_keep_the_news_from_others(make_family):
    family = make_family()
    reported: list[Any] = []
    family.loop.set_exception_handler(lambda loop, context: reported.append(context))

    def raise_it(child: Child) -> NoReturn:
        raise ValueError("on_change")

    first = family.zygotes.start(0, 7, raise_it)
    second = family.start()
    first.kill()
    second.kill()
    family.until_ended(first, second)
    first.sock.close()
    assert [(type(one["exception"]), one["message"]) for one in reported] == [
        (ValueError, "on_change of child 7 raised")
    ]


def test_many_children_leave_nothing(make_family):
    family = make_family()
    family.start_and_ask().kill()
    family.until_ended(*family.children)
    ours, theirs = our_files(), [open_files(pid) for pid in family.pids]
    for _ in range(8):
        children = [family.start() for _ in range(10)]
        for child in children[::2]:
            family.say(child, "return")
        for child in children[1::2]:
            child.kill()
        family.until_ended(*children)
        for child in children:
            child.sock.close()
    assert our_files() <= ours
    assert [open_files(pid) for pid in family.pids] == theirs
    assert not list(children_of(family.pids[0]))


def children_of(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
