"""The documentation, run: its programs, its commands, its links and the tests that it names.

A fenced block with a file name (```python client.py) is that file; one that ends in `prints`
(```text client.py prints) is what running it prints; a python block without a name is executed
after those before it, where that needs no other program. The ports 9998 (gRPC) and 9999 (HTTP)
stand for free ones.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import yaml
from documents import (
    FIRST_PADDLE,
    FIRST_TRITON,
    GUIDE,
    IN_CHINESE,
    MIGRATION,
    OF_THE_GUIDE,
    PAGES,
    PROCESSES,
    RUN,
    TRITON,
    blocks,
    file_named,
)
from paths import ROOT
from served import without_log

from pipeline.config.schema import load_config
from pipeline.errors import ErrorCode
from pipeline.repository.backends.pipeline import graph_of_file
from scripts.site.decisions import DECISIONS, drawn

DROP_IN = ("-m", "pipeline", "run")

TRITONS_CLIENT = ROOT / "build" / "interop" / "triton" / "bin" / "python"
"""An interpreter with `tritonclient`, which `make interop` sets up."""

START_S = 60.0
STOP_S = 45.0
# A server that all networks may ask says so.
READY = (
    r"(.*: every caller .* may do anything.*\n)?(\+-[-+|\w\s]+)?pipeline server.* is ready: .*\n"
)


class Place:
    """A folder in which the files of the pages lie, with ports that are free."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with contextlib.ExitStack() as probes:
            taken = [probes.enter_context(socket.create_server(("", 0))) for _ in range(2)]
            self.rpc_port, self.http_port = (probe.getsockname()[1] for probe in taken)

    def put(self, name: str) -> Path:
        text = file_named(name, *RUN)
        text = text.replace("9998", str(self.rpc_port)).replace("9999", str(self.http_port))
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def printed(
        self, name: str, options: tuple[str, ...] = (), python: str = sys.executable
    ) -> str:
        """What running the file `name` prints, with options for Python."""
        runner = "bash" if name.endswith(".sh") else python
        done = subprocess.run(
            [runner, *options, str(self.put(name))],
            cwd=self.folder,
            env=_environment(),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert (done.returncode, without_log(done.stderr)) == (0, "")
        return done.stdout

    def tested(self, *names: str) -> str:
        """Return what pytest prints about the test files `names`, which pass."""
        paths = [str(self.put(name)) for name in names]
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *paths],
            cwd=self.folder,
            env=_environment(),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stdout
        return done.stdout

    def serving(
        self, name: str, options: tuple[str, ...] = ()
    ) -> contextlib.AbstractContextManager[None]:
        """The program `name` runs and is ready; at the end Ctrl-C stops it."""
        return self.running(*options, str(self.put(name)))

    @contextlib.contextmanager
    def running(self, *arguments: str) -> Iterator[None]:
        """Python runs with these arguments and is ready; at the end Ctrl-C stops it."""
        process = subprocess.Popen(
            [sys.executable, *arguments],
            cwd=self.folder,
            env=_environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        try:
            self._wait_until_ready(process)
            yield
            process.send_signal(signal.SIGINT)
            said, _ = process.communicate(timeout=STOP_S)
            assert process.returncode == 0
            assert re.fullmatch(READY, without_log(said))
        finally:
            if process.poll() is None:
                process.kill()
                process.communicate()

    def _wait_until_ready(self, process: subprocess.Popen[str]) -> None:
        deadline = time.monotonic() + START_S
        while not self._is_ready():
            assert process.poll() is None, process.communicate()[0]
            assert time.monotonic() < deadline, "the service never became ready"
            time.sleep(0.05)

    def _is_ready(self) -> bool:
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(f"http://127.0.0.1:{self.http_port}/health/ready", timeout=5):
                return True
        except (urllib.error.URLError, OSError):
            return False


def _environment() -> dict[str, str]:
    """Ours, without this network's proxy: the servers are on this machine. `python` is this one."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    return {**os.environ, "PATH": path, "no_proxy": "127.0.0.1", "NO_PROXY": "127.0.0.1"}


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


needs_curl = pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")


@pytest.fixture
def readme_service(place: Place) -> Iterator[Place]:
    place.put("config.yml")
    with place.serving("web_server.py"):
        yield place


@pytest.mark.parametrize(
    "name",
    [
        "client.py",
        "clients.py",
        pytest.param("ask.sh", marks=needs_curl),
        pytest.param("curl.sh", marks=needs_curl),
        pytest.param("plain.sh", marks=needs_curl),
        pytest.param("look.sh", marks=needs_curl),
        "graph.sh",
    ],
)
def test_the_service_of_the_readme_answers_as_printed(readme_service, name):
    expected = file_named(f"{name} prints", *RUN)
    assert readme_service.printed(name).rstrip("\n") == expected.rstrip("\n")


@pytest.mark.parametrize(
    "name",
    [
        "conditions.py",
        "jump.py",
        "finder.py",
        "asks.py",
        "two.py",
        "counting.py",
        "counts.py",
        "embedded.py",
        "crash.py",
        "paddle_embedded.py",
    ],
)
def test_a_program_of_the_docs_prints_the_documented_output(place, name):
    assert place.printed(name) == file_named(f"{name} prints", *RUN)


@needs_curl
def test_the_first_service_answers_as_printed_and_its_tests_pass(place):
    place.put("reviews.yml")
    with place.serving("reviews_server.py"):
        expected = file_named("ask_reviews.sh prints", *RUN)
        assert place.printed("ask_reviews.sh").rstrip("\n") == expected.rstrip("\n")
    assert "3 passed" in place.tested("test_reviews.py")


@needs_curl
def test_the_tutorial_of_pictures_answers_as_printed_and_its_test_passes(place):
    place.put("pictures.yml")
    assert place.printed("make_colours.py") == ""
    with place.serving("pictures_server.py"):
        expected = file_named("ask_pictures.sh prints", *RUN)
        assert place.printed("ask_pictures.sh").rstrip("\n") == expected.rstrip("\n")
    assert "1 passed" in place.tested("test_pictures.py")


@needs_curl
def test_the_tutorial_of_a_language_model_prints_the_documented_output(place):
    place.put("chat.yml")
    with place.serving("chat_server.py"):
        for name in ("ask_chat.sh", "ask_chat.py"):
            assert place.printed(name) == file_named(f"{name} prints", *RUN)
    assert "1 passed" in place.tested("test_chat.py")


def test_the_web_service_of_the_guide_serves(place):
    body = b'{"key":["text"],"value":["abc"]}'
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with place.serving("service.py"):
        url = f"http://127.0.0.1:{place.http_port}/upper/prediction"
        with opener.open(urllib.request.Request(url, body), timeout=30) as reply:
            assert b'"value":["ABC"]' in reply.read()


def test_the_tests_of_the_docs_pass(place):
    """They are run as a user runs them: pytest, beside the service of the README."""
    names = ["test_shares.py", "test_label.py"]
    for name in ("web_server.py", "config.yml"):
        place.put(name)
    assert "6 passed" in place.tested(*names)


@needs_curl
def test_the_service_that_declares_tensors_answers_as_printed(place):
    with place.serving("tensors_server.py"):
        assert place.printed("v2.sh").rstrip("\n") == file_named("v2.sh prints", TRITON).rstrip(
            "\n"
        )


@needs_curl
def test_the_script_of_the_predecessor_serves_and_its_client_asks_it(place):
    place.put("paddle_config.yml")
    with place.serving("paddle_service.py", DROP_IN):
        for name, options in (("paddle_ask.sh", ()), ("paddle_client.py", DROP_IN)):
            expected = file_named(f"{name} prints", FIRST_PADDLE)
            assert place.printed(name, options).rstrip("\n") == expected.rstrip("\n")


@needs_curl
def test_the_repository_of_triton_answers_as_printed(place):
    for name in ("models/words/1/model.py", "models/words/config.pbtxt"):
        place.put(name)
    (place.folder / "models" / "score" / "1").mkdir(parents=True)
    assert place.printed("make_score.py") == ""
    ports = (f"--http-port={place.http_port}", f"--grpc-port={place.rpc_port}")
    flags = ("--model-control-mode=explicit", "--load-model=*", "--allow-metrics=false")
    with place.running("-m", "pipeline", "repository", "--model-repository=models", *ports, *flags):
        asked = [("load.sh", sys.executable)]
        if TRITONS_CLIENT.exists():
            asked.insert(0, ("ask_models.py", str(TRITONS_CLIENT)))
        for name, python in asked:
            expected = file_named(f"{name} prints", FIRST_TRITON)
            assert place.printed(name, python=python).rstrip("\n") == expected.rstrip("\n")


def test_the_pipeline_between_models_is_a_graph(place):
    graph = graph_of_file(place.put("between_models.py"), "of_the_docs")
    assert [op.name for op in graph.ops] == ["cheap", "unsure", "large", "out"]


@pytest.mark.parametrize("page", IN_CHINESE, ids=lambda page: page.name)
def test_the_chinese_page_has_the_code_and_the_sections_of_the_english_one(page):
    """Its examples are the same; only prose and drawings are translated."""
    theirs = IN_CHINESE[page]
    assert [b for b in blocks(theirs) if b.language] == [b for b in blocks(page) if b.language]
    parts = [len(re.findall(r"^## ", item.read_text(), re.MULTILINE)) for item in (page, theirs)]
    assert parts[0] == parts[1]
    for each, other in ((page, theirs), (theirs, page)):
        assert f"]({other.name})" in each.read_text(), f"{each.name} has no link to {other.name}"


def test_every_named_file_is_run_by_a_test_here():
    run = {"web_server.py", "config.yml", "client.py", "ask.sh"}
    run |= {
        "clients.py",
        "curl.sh",
        "plain.sh",
        "conditions.py",
        "jump.py",
        "finder.py",
        "asks.py",
        "two.py",
        "counting.py",
        "counts.py",
        "embedded.py",
        "service.py",
        "crash.py",
    }
    run |= {"reviews_server.py", "reviews.yml", "ask_reviews.sh", "test_reviews.py"}
    run |= {"make_colours.py", "pictures_server.py", "pictures.yml", "ask_pictures.sh"}
    run |= {
        "test_pictures.py",
        "chat_server.py",
        "chat.yml",
        "ask_chat.sh",
        "ask_chat.py",
        "test_chat.py",
    }
    run |= {"paddle_service.py", "paddle_config.yml", "paddle_ask.sh", "paddle_client.py"}
    run |= {"between_models.py", "test_shares.py", "test_label.py"}
    run |= {"models/words/1/model.py", "models/words/config.pbtxt", "make_score.py"}
    run |= {"ask_models.py", "load.sh"}
    run |= {"paddle_embedded.py", "tensors_server.py", "v2.sh", "look.sh", "graph.sh"}
    names = {block.name for page in RUN for block in blocks(page) if block.name}
    assert {name for name in names if not name.endswith(" prints")} == run


WITH_FRAGMENTS = [
    page
    for page in (GUIDE, PROCESSES, MIGRATION, *OF_THE_GUIDE)
    if any(block.language == "python" and not block.name for block in blocks(page))
]


def test_most_pages_have_fragments():
    assert len(WITH_FRAGMENTS) >= 6


@pytest.mark.parametrize("page", WITH_FRAGMENTS, ids=lambda page: page.stem)
def test_the_fragments_of_a_page_run(page):
    fragments = [b.text for b in blocks(page) if b.language == "python" and not b.name]
    namespace: dict[str, object] = {}
    exec("import numpy as np\nfrom pipeline import *", namespace)
    for fragment in fragments:
        exec(compile(fragment, str(page), "exec"), namespace)


@pytest.mark.parametrize("page", RUN, ids=lambda page: page.name)
def test_each_key_of_a_documented_configuration_is_known(page):
    for block in blocks(page):
        if block.language == "yaml":
            config = load_config(yml_dict={"rpc_port": 0, **yaml.safe_load(block.text)})
            assert config.warnings == ()


def test_the_guide_has_every_code():
    table = GUIDE.read_text().partition("| err_no |")[2].partition("\n\n")[0]
    listed = re.findall(r"^\| (\d+) \| ", table, re.MULTILINE)
    assert {int(number) for number in listed} == {int(code) for code in ErrorCode}


def test_the_drawings_of_decisions_are_generated_from_their_source():
    for name, decision in DECISIONS.items():
        assert (ROOT / "docs" / f"{name}.svg").read_text() == drawn(*decision)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_have_targets(page):
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if target.startswith(("http://", "https://")):
            continue
        path, _, anchor = target.partition("#")
        linked = (page.parent / path).resolve() if path else page
        assert linked.exists(), target
        assert not anchor or anchor in _anchors(linked), target


@cache
def _anchors(page: Path) -> set[str]:
    """The names that headings have in links."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_tests_that_a_page_names_exist(page):
    for path, name in re.findall(r"(tests/[\w/]+\.py)(?:::|` `)(test_\w+)", page.read_text()):
        assert re.search(rf"^\s*(async )?def {name}\(", (ROOT / path).read_text(), re.MULTILINE), (
            f"{path} has no {name}"
        )
