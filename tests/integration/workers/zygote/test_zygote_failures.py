"""Zygotes that run out of something, that die, and that are closed."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import random
import resource
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable

import pytest
from doubles import wait_until
from garbage import collect
from stepped_zygotes import KILLED, VANISHED
from zygote_children import living, obey, our_files, status_of

from pipeline.errors import InitError
from pipeline.workers.zygote import controller
from pipeline.workers.zygote.controller import Child, Zygotes
from pipeline.workers.zygote.link import is_at_work
from pipeline.workers.zygote.main import Kill

# A system that has run out ------------------------------------------------------------------


def test_more_starts_than_the_socket_holds_wait_for_their_turn(make_family):
    family = make_family()
    os.kill(family.pids[0], signal.SIGSTOP)
    wait_until(lambda: status_of(family.pids[0], "State").startswith("T"))
    family.zygotes._zygotes[0].control.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
    children = [family.start(number=i) for i in range(60)]
    children[50].kill()
    os.kill(family.pids[0], signal.SIGCONT)
    family.until_ended(children[50])
    answers = [family.ask(child, "number") for child in children if child.number != 50]
    assert answers == [str(i) for i in range(60) if i != 50]


def test_a_zygote_that_cannot_fork_reports_it_and_stays(make_family, monkeypatch):
    with monkeypatch.context() as patch:
        refuse_forks_of_others(patch)
        family = make_family()
    child = family.start()
    family.until_ended(child)
    assert child.ending == "could not be started: [Errno 11] no more processes"
    assert len(family.pids) == 2
    assert child.pid is None


def test_a_spare_that_cannot_be_cloned_is_tried_again_with_the_next_start(make_family, monkeypatch):
    with monkeypatch.context() as patch:
        refuse_forks_of_others(patch)
        family = make_family()
    active, spare = family.pids
    os.kill(spare, signal.SIGKILL)
    family.until(lambda: family.pids == [active])
    child = family.start()
    assert len(family.zygotes._zygotes) == 2, "it is tried"
    family.until_ended(child)
    family.until(lambda: family.pids == [active])
    assert child.ending.startswith("could not be started: ")


def refuse_forks_of_others(patch: pytest.MonkeyPatch) -> None:
    home, fork = os.getpid(), os.fork

    def fork_at_home() -> int:
        if os.getpid() != home:
            raise OSError(errno.EAGAIN, "no more processes")
        return fork()

    patch.setattr(os, "fork", fork_at_home)


def test_without_a_descriptor_for_a_child_the_start_is_an_error(make_family):
    family = make_family()
    with NoDescriptorLeft(), pytest.raises(InitError, match="ulimit -n"):
        family.start()
    assert family.ask(family.start(), "ping") == "pong"


def test_without_a_descriptor_for_its_pidfd_a_child_works(make_family):
    family = make_family()
    child = family.start()

    async def learn_that_it_runs() -> None:
        with NoDescriptorLeft():
            while child.state == "starting":  # noqa: ASYNC110 - turns are what it takes
                await asyncio.sleep(0)

    family.run(learn_that_it_runs())
    assert child.life is None
    child.kill()
    family.until_ended(child)
    assert child.ending == KILLED


class NoDescriptorLeft:
    """Within it this process can open nothing."""

    def __enter__(self) -> None:
        self._before = resource.getrlimit(resource.RLIMIT_NOFILE)
        highest = max(int(name) for name in os.listdir("/proc/self/fd"))
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 1, self._before[1]))
        self._fillers: list[int] = []
        with contextlib.suppress(OSError):
            while True:
                self._fillers.append(os.dup(0))

    def __exit__(self, *_: object) -> None:
        for filler in self._fillers:
            os.close(filler)
        resource.setrlimit(resource.RLIMIT_NOFILE, self._before)


def test_zygotes_that_cannot_be_forked_are_an_error_and_leave_nothing(monkeypatch):
    collect()
    before, forks, fork = our_files(), [], os.fork

    def fork_once() -> int:
        forks.append(1)
        if len(forks) > 1:
            raise OSError(errno.ENOMEM, "no memory")
        return fork()

    monkeypatch.setattr(os, "fork", fork_once)
    with pytest.raises(InitError, match=r"cannot be prepared: .*no memory"):
        Zygotes([obey])
    assert our_files() <= before


def test_a_system_other_than_linux_is_refused(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(InitError, match="need Linux"):
        Zygotes([obey])


# Zygotes that die ---------------------------------------------------------------------------


def test_children_die_with_their_zygote_also_while_the_parent_sleeps(make_family):
    family = make_family()
    children = [family.start_and_ask() for _ in range(2)]
    os.kill(family.pids[0], signal.SIGKILL)
    wait_until(lambda: not living(child.pid for child in children))
    family.until_ended(*children)
    assert [child.ending for child in children] == [VANISHED] * 2


@pytest.mark.parametrize("start_method", ["fork", "spawn"])
def test_the_spare_takes_over_and_is_replaced(make_family, start_method):
    family = make_family(start_method=start_method)
    for _ in range(4):
        active, spare = family.pids
        child = family.start_and_ask()
        os.kill(active, signal.SIGKILL)
        family.until_ended(child)
        assert child.ending == VANISHED
        assert family.ask(family.start(), "ping") == "pong"
        family.until(lambda: len(family.pids) == 2)
        assert family.pids[0] == spare
        assert active not in family.pids
        family.until(lambda active=active: status_of(active, "State") == "X")


def test_children_of_the_active_one_live_on_when_the_spare_dies(make_family):
    family = make_family()
    child = family.start_and_ask()
    active, spare = family.pids
    os.kill(spare, signal.SIGKILL)
    family.until(lambda: len(family.pids) == 2 and family.pids[1] != spare)
    assert family.pids[0] == active
    assert family.ask(child, "ping") == "pong"
    assert family.states[child] == []
    family.until(lambda: status_of(spare, "State") == "X")


def test_a_reported_ending_is_known_after_the_death_of_the_zygote(make_family):
    family = make_family()
    child = family.start_and_ask()
    pid = family.pids[0]
    family.say(child, "os._exit")
    wait_until(lambda: status_of(child.pid, "State") == "X")
    control = family.zygotes._zygotes[0].control
    wait_until(lambda: bool(select.select([control], [], [], 0)[0]))  # it has told
    os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: status_of(pid, "State").startswith("T"))
    unread = family.start()  # makes the end of the socket a reset
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not living([pid]))
    family.until_ended(child, unread)
    assert child.ending == "ended with exit code 3 (os._exit or sys.exit in user code)"
    assert unread.ending == VANISHED


def test_requests_that_a_dead_zygote_did_not_read_end_their_children(make_family):
    family = make_family()
    pid = family.pids[0]
    os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: status_of(pid, "State").startswith("T"))
    unread = [family.start() for _ in range(3)]
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not living([pid]))
    unsent = [family.start() for _ in range(3)]
    family.until_ended(*unread, *unsent)
    assert {child.ending for child in family.children} == {VANISHED}
    assert family.ask(family.start(), "ping") == "pong"


@pytest.mark.parametrize("is_asked_to", ["kill", "start"])
def test_a_zygote_that_was_stopped_is_killed_when_it_is_needed(make_family, is_asked_to):
    family = make_family(reply_timeout_s=0.05)
    child = family.start_and_ask()
    active, spare = family.pids
    os.kill(active, signal.SIGSTOP)
    wait_until(lambda: status_of(active, "State").startswith("T"))
    if is_asked_to == "kill":
        child.kill()
    else:
        family.until_ended(family.start())
    family.until_ended(child)
    assert child.ending == VANISHED
    family.zygotes._reply_timeout_s = 60.0
    assert family.start_until_it_runs().state == "running"
    assert family.pids[0] == spare


def test_a_zygote_that_waits_for_a_core_has_a_minute_more(make_family, monkeypatch):
    requests = []
    monkeypatch.setattr(
        controller, "is_at_work", lambda pid: requests.append(pid) or len(requests) < 5
    )
    family = make_family(reply_timeout_s=0.01)
    active = family.pids[0]
    os.kill(active, signal.SIGSTOP)
    wait_until(lambda: status_of(active, "State").startswith("T"))
    family.until_ended(family.start())
    assert requests == [active] * 5


def test_a_silent_zygote_is_killed(make_family, monkeypatch):
    monkeypatch.setattr(controller, "is_at_work", lambda pid: True)
    monkeypatch.setattr(controller, "_BUSY_S", 0.05)
    family = make_family(reply_timeout_s=0.01)
    os.kill(family.pids[0], signal.SIGSTOP)
    child = family.start()
    family.until_ended(child)
    assert child.ending == VANISHED


def test_a_running_process_is_at_work_and_a_stopped_one_is_not():
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as process:
        wait_until(lambda: is_at_work(process.pid))
        process.send_signal(signal.SIGSTOP)
        wait_until(lambda: not is_at_work(process.pid))
        process.kill()
    assert not is_at_work(process.pid)


def test_a_zygote_is_not_blamed_for_a_child_that_dies_slowly(make_family):
    family = make_family()
    pids = family.pids
    child = family.start_and_ask()
    active = family.zygotes._zygotes[0]
    active.killing.add(-1)  # a child that does not exist: no report follows
    active.send(Kill(-1))
    heard = active.heard
    family.zygotes._check(active, heard)
    family.until(lambda: active.heard > heard)  # it says that it is there
    family.zygotes._check(active, heard)
    assert not active.is_pinged
    assert family.ask(child, "ping") == "pong"
    assert family.pids == pids


def test_a_zygote_without_open_requests_is_left_alone(make_family):
    family = make_family()
    pids = family.pids
    child = family.start_and_ask()
    child.kill()
    family.until_ended(child)
    active = family.zygotes._zygotes[0]
    family.zygotes._check(active, active.heard)
    assert active.doubts is None
    assert not active.is_pinged
    assert family.pids == pids


def test_without_zygotes_a_start_ends_at_once_with_the_reason(make_family):
    family = make_family()
    child = family.start_and_ask()
    for pid in family.pids:
        os.kill(pid, signal.SIGSTOP)  # so that neither is asked for a clone in between
    for pid in family.pids:
        os.kill(pid, signal.SIGKILL)
    family.until_ended(child)
    family.until(lambda: family.pids == [])
    late = family.start()
    assert late.state == "starting", "start() itself notifies nobody"
    family.until_ended(late)
    assert "both were killed" in late.ending
    late.kill()


def test_zygotes_that_revive_are_spawned_again_when_both_were_lost(make_family):
    family = make_family(revives=True)
    family.start_and_ask()
    for _ in range(2):
        pids = family.pids
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        family.until(lambda: not family.zygotes._zygotes)
        child = family.start()
        assert family.ask(child, "number") == "0"
        assert not set(pids) & set(family.pids)


def test_a_child_killed_in_any_order_ends_once(make_family):
    """A storm: starts, kills, stops, deaths of zygotes; the fixture counts the reports."""
    dice = random.Random(20250731)
    family = make_family()
    storm: list[Callable[[], object]] = [
        family.start,
        family.start,
        lambda: family.start().kill(),
        lambda: dice.choice(family.children).kill(),
        lambda: send(dice.choice(family.children), signal.SIGKILL),
        lambda: send(dice.choice(family.children), signal.SIGSTOP),
        lambda: send(dice.choice(family.children), signal.SIGCONT),
        family.turn,
        family.turn,
    ]
    family.start()
    killed = 0
    for step in range(300):
        dice.choice(storm)()
        if step % 30 == 29:
            family.until(lambda killed=killed: len(set(family.pids) - {killed}) == 2)
            killed = dice.choice(family.pids)
            os.kill(killed, signal.SIGKILL)
    for child in family.children:
        child.kill()
    family.until_ended(*family.children)
    # How many of some 100 ran depends on how soon their zygotes died.
    assert len({child.pid for child in family.children}) > 10
    assert family.ask(family.start_until_it_runs(), "ping") == "pong"


def send(child: Child, number: int) -> None:
    """A signal, to one that is surely still this child; it may have been reaped a moment ago."""
    if child.state != "ended" and child.life is not None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(child.life, number)


# Closing ------------------------------------------------------------------------------------


def test_closing_reports_every_child_and_leaves_no_process(make_family):
    family = make_family()
    children = [family.start_and_ask() for _ in range(3)]
    os.kill(children[0].pid, signal.SIGSTOP)
    starting = family.start()
    zygotes = family.pids
    family.run(family.zygotes.close(5.0))
    assert [child.ending for child in children] == [KILLED] * 3
    assert starting.state == "ended"
    assert not [pid for pid in zygotes if status_of(pid, "State") != "X"], "they are reaped"
    family.run(family.zygotes.close(5.0))


def test_closing_does_not_wait_for_zygotes_that_hang(make_family):
    family = make_family()
    child = family.start_and_ask()
    zygotes = family.pids
    for pid in zygotes:
        os.kill(pid, signal.SIGSTOP)
    family.run(family.zygotes.close(0.0))
    assert child.ending == VANISHED
    assert not [pid for pid in zygotes if status_of(pid, "State") != "X"], "they are reaped"


def test_closing_does_not_wait_for_imports_of_fresh_interpreters(
    make_family, monkeypatch, tmp_path
):
    (tmp_path / "never_imported.py").write_text("import threading\nthreading.Event().wait()\n")
    monkeypatch.syspath_prepend(tmp_path)
    family = make_family(start_method="spawn", preload=["never_imported"])
    zygotes = [zygote.pid for zygote in family.zygotes._zygotes]
    child = family.start()
    family.run(family.zygotes.close(3600.0))
    assert child.state == "ended"
    assert not living(zygotes)


def test_a_start_after_close_ends_at_once_with_the_reason(make_family):
    family = make_family()
    family.run(family.zygotes.close(5.0))
    child = family.start()
    family.until_ended(child)
    assert child.ending == "could not be started: the server is stopping"


def test_a_cancelled_close_leaves_nothing(make_family):
    family = make_family()
    child = family.start_and_ask()
    pids = family.pids
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    task = family.loop.create_task(family.zygotes.close(60.0))
    family.turn()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        family.run(task)
    assert child.state == "ended"
    assert not living(pids)


def test_zygotes_that_never_had_a_loop_can_be_closed():
    before = our_files()
    zygotes = Zygotes([obey])
    zygotes.close_now()
    zygotes.close_now()
    assert our_files() <= before


def test_starting_needs_a_loop():
    zygotes = Zygotes([obey])
    with pytest.raises(RuntimeError, match="attach"):
        zygotes.start(0, 0, lambda child: None)
    zygotes.close_now()
