"""`make release-check`: its parts, the state of an interrupted run, and the page."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from doubles import wait_until
from paths import ROOT

from scripts import release_check

Part, State, Tree = release_check.Part, release_check.State, release_check.Tree


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """A checkout with one commit, whose page is docs/verified.md."""
    folder = tmp_path / "checkout"
    (folder / "docs").mkdir(parents=True)
    (folder / "code").write_text("1")
    (folder / ".gitignore").write_text("/build\n")
    tree = Tree(folder)
    for name in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{name}_NAME", "a")
        monkeypatch.setenv(f"GIT_{name}_EMAIL", "a@b")
    tree._git("init", "--quiet")
    _commit(tree)
    return tree


def _commit(tree):
    tree._git("add", ".")
    tree._git("commit", "--quiet", "--allow-empty", "--message", "a")


@pytest.fixture
def verify(tree, monkeypatch):
    """Verify with the page of the earlier calls; return the outcomes by their parts."""

    def verify(*parts, **options):
        monkeypatch.setattr(release_check, "PARTS", parts)
        page = tree.root / "docs" / "verified.md"
        is_well = release_check.verify(parts, State(page), tree, **options)
        outcomes = State(page).outcomes
        return is_well, {name: (each.outcome, each.artefact) for name, each in outcomes.items()}

    return verify


def test_each_part_passes_or_fails_and_its_last_line_is_in_the_page(verify, tree):
    good = Part("good", "echo first; echo '== 7 passed | 1 =='; echo ---")
    is_well, outcomes = verify(good, Part("bad", "echo no; exit 3"))
    assert not is_well
    assert outcomes == {
        "good": (release_check.PASSED, "7 passed \\| 1"),
        "bad": (release_check.FAILED, "no"),
    }
    page = (tree.root / "docs" / "verified.md").read_text()
    assert re.search(rf"\| good \|.*\| {tree.commit()} \|.*\| passed \| \d+ \| 7 passed", page)
    assert "| bad |" in page


def test_a_part_that_is_a_make_within_make_ends_with_a_line_of_its_own(verify, tree, monkeypatch):
    monkeypatch.setenv("MAKELEVEL", "1")
    monkeypatch.setenv("MAKEFLAGS", "w")
    (tree.root / "Makefile").write_text("all: ; @echo 7 skipped")
    _, outcomes = verify(Part("part", "make"))
    assert outcomes["part"] == (release_check.NOT_RUN, "7 skipped")


def test_a_part_that_passed_at_this_commit_does_not_run_again(verify, tree, tmp_path):
    counted = Part("counted", f"echo >> {tmp_path}/runs; wc -l < {tmp_path}/runs")

    def runs(**options):
        return verify(counted, **options)[1]["counted"][1]

    assert runs() == "1"
    assert runs() == "1"
    _commit(tree)  # the page alone
    assert runs() == "1"
    assert runs(is_again=True) == "2"
    (tree.root / "code").write_text("2")
    assert runs() == "3"
    assert runs() == "4", "nobody can say what files it passed with"
    _commit(tree)
    assert runs() == "5"
    assert runs() == "5"


def test_the_page_alone_has_what_passed_at_an_earlier_commit(verify, tree):
    first, second = Part("first", "echo '1 | 2'"), Part("second", "echo 3")
    verify(first, second)
    before = (tree.root / "docs" / "verified.md").read_text()
    (tree.root / "code").write_text("2")
    _commit(tree)
    state = State(tree.root / "docs" / "verified.md")
    assert release_check.verify([second], state, tree)
    after = (tree.root / "docs" / "verified.md").read_text()
    (row,) = [line for line in before.splitlines() if line.startswith("| first |")]
    assert row in after.splitlines()
    assert tree.commit() in after, "of the second"


def test_pictures_that_a_part_draws_are_no_changes(verify, tree):
    clean = tree.commit()
    verify(Part("page", "touch docs/page.png"))
    assert tree.commit() == clean
    verify(Part("code", "touch other"))
    assert tree.commit() == clean + "+changes"


def test_a_part_that_failed_runs_again(verify, tmp_path):
    part = Part("part", f"test -e {tmp_path}/mended")
    assert not verify(part)[0]
    (tmp_path / "mended").touch()
    assert verify(part) == (True, {"part": (release_check.PASSED, "")})


def test_a_part_that_takes_too_long_is_killed_with_its_children(verify, tmp_path):
    child = f"(trap '' TERM; exec sleep 1000) & echo $! > {tmp_path}/pid"
    is_well, outcomes = verify(Part("slow", f"{child}; wait", limit_s=1))
    assert (is_well, outcomes["slow"][0]) == (False, release_check.LATE)
    wait_until(lambda: not _runs(tmp_path))


def test_a_part_that_takes_too_long_stops_what_has_a_session_of_its_own(verify, tmp_path):
    (tmp_path / "part.py").write_text(
        "import subprocess\n"
        "service = subprocess.Popen(['sleep', '1000'], start_new_session=True)\n"
        f"open({str(tmp_path / 'pid')!r}, 'w').write(str(service.pid))\n"
        "try:\n"
        "    service.wait()\n"
        "finally:\n"
        "    service.kill()\n"
    )
    _, outcomes = verify(Part("slow", f"{sys.executable} {tmp_path}/part.py", limit_s=1))
    assert outcomes["slow"][0] == release_check.LATE
    wait_until(lambda: not _runs(tmp_path))


def test_a_part_that_passed_leaves_no_children(verify, tmp_path):
    is_well, _ = verify(Part("good", f"sleep 1000 > /dev/null & echo $! > {tmp_path}/pid"))
    assert is_well
    wait_until(lambda: not _runs(tmp_path))


def _runs(folder):
    status = Path("/proc", (folder / "pid").read_text().strip(), "stat")
    try:
        return status.read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_part_whose_tests_are_all_skipped_did_not_run(verify, capsys):
    part = Part("part", "echo '==== 2 skipped in 1.2s ===='")
    outcome = (release_check.NOT_RUN, "2 skipped in 1.2s")
    assert verify(part) == (True, {"part": outcome})
    assert "part did not run: 2 skipped in 1.2s" in capsys.readouterr().out


def test_a_release_check_that_is_ended_ends_its_part(tmp_path):
    part = Part("part", f"sleep 300 & echo $! > {tmp_path}/pid; wait")
    program = f"""
import sys
from pathlib import Path
from scripts import release_check
sys.argv = ["release_check.py"]
part = release_check.Part(*{tuple(part)!r})
release_check.verify = lambda *_: release_check.run(part, "", Path({str(tmp_path / "log")!r}))
release_check.main()
"""
    process = subprocess.Popen([sys.executable, "-c", program], cwd=ROOT)
    file = tmp_path / "pid"
    wait_until(lambda: file.exists() and file.read_text().endswith("\n"))
    assert _runs(tmp_path)
    process.terminate()
    assert process.wait(30) == 1
    wait_until(lambda: not _runs(tmp_path))


def test_a_part_that_is_being_started_when_a_signal_comes_is_ended(tmp_path, monkeypatch):
    started = []
    start = subprocess.Popen

    def start_and_signal(command, **options):
        started.append(start(command, **options))
        signal.raise_signal(signal.SIGINT)
        return started[0]

    monkeypatch.setattr(subprocess, "Popen", start_and_signal)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            release_check.run(Part("part", "exec sleep 1000"), "", tmp_path / "log")
    finally:
        signal.signal(signal.SIGINT, before)
    assert started[0].poll() == -signal.SIGINT


def test_a_part_whose_needs_are_missing_does_not_run(verify):
    part = Part("part", "exit 1", needs=("bash", "no-such-program", "nor-this"))
    outcome = (release_check.NOT_RUN, "needs no-such-program, nor-this")
    assert verify(part) == (True, {"part": outcome})


def test_a_machine_that_lacks_something_keeps_what_passed_elsewhere(verify, tree, capsys):
    part = Part("part", "echo 1", needs=("sh",))
    verify(part)
    (tree.root / "code").write_text("2")
    _commit(tree)
    is_well, outcomes = verify(part._replace(needs=("no-such-program",)))
    assert (is_well, outcomes) == (True, {"part": (release_check.PASSED, "1")})
    assert "part did not run: needs no-such-program" in capsys.readouterr().out


def test_a_last_line_like_a_row_is_read_back(verify, tmp_path):
    line = "`y` | a | b | c | passed | 1 | z |"
    (tmp_path / "line").write_text(line)
    part = Part("part", f"cat {tmp_path}/line")
    assert verify(part)[1]["part"][1] == line.replace("|", "\\|")


def test_an_interrupted_write_of_the_page_is_no_change(verify, tree, monkeypatch):
    def ends(*_):
        raise KeyboardInterrupt

    commit = tree.commit()
    monkeypatch.setattr(Path, "replace", ends)
    with pytest.raises(KeyboardInterrupt):
        verify(Part("part", "echo 1"))
    assert tree.commit() == commit


def test_each_part_is_shorter_than_half_an_hour_and_is_there():
    makefile = (ROOT / "Makefile").read_text()
    names = [part.name for part in release_check.PARTS]
    assert len(names) == len(set(names))
    for part in release_check.PARTS:
        assert not {*part.command} & {"`", "|"}, "the page could not be read back"
        assert part.limit_s < 1800
        program, _, rest = re.sub(r"^\w+=('[^']*'|\S+) ", "", part.command).partition(" ")
        if program == "make":
            assert f"\n{rest}: " in makefile
        elif rest.startswith("scripts/"):
            assert (ROOT / rest.split()[0]).exists()
        else:
            module = rest.split()[1].replace(".", "/")
            tops = (ROOT, ROOT / "tests")
            assert any(
                (top / f"{module}.py").exists() or (top / module / "__main__.py").exists()
                for top in tops
            ), part.command


def test_the_page_of_this_checkout_has_the_parts_that_there_are():
    page = (ROOT / "docs" / "verified.md").read_text()
    rows = [line.split(" | ")[0].removeprefix("| ") for line in page.splitlines()[6:]]
    assert rows == [part.name for part in release_check.PARTS]
    assert subprocess.run(
        ["git", "check-ignore", "--quiet", "build/release/check.log"], cwd=ROOT, check=False
    ).returncode in (0, 128)  # 128: not a checkout
