"""`pipeline init` and `pipeline dockerize`: what they write, and what they leave alone."""

from __future__ import annotations

from pathlib import Path

import pytest
from paths import ROOT

from pipeline.cli.dockerize import OwnWheel
from pipeline.cli.init import service_files
from pipeline.cli.main import main
from pipeline.config.schema import load_config

FILES = {
    *("web_server.py", "config.yml", "test_web_server.py", "requirements.txt", "README.md"),
    *("Dockerfile", ".dockerignore", ".gitignore", ".config.schema.json", "wheels"),
}


WHEEL = OwnWheel("pipeline_serving-9-py3-none-any.whl", b"a wheel")
LINE = (
    "pipeline-serving @ file://${PWD}/wheels/pipeline_serving-9-py3-none-any.whl"
    "#sha256=69f51477f05c46bfa5ff0027a1fcde274695311a38adfb85611ffeb93c8b146b"
)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("pipeline.cli.dockerize.own_wheel", lambda: WHEEL)  # that takes a second


def requirements(folder: str = ".") -> list[str]:
    lines = Path(folder, "requirements.txt").read_text().splitlines()
    return [line for line in lines if not line.startswith("#")]


def test_a_service_is_written_under_its_name(capsys):
    assert main(["init", "below/hello"]) == 0
    assert {path.name for path in Path("below/hello").iterdir()} == FILES
    texts = [path.read_text() for path in Path("below/hello").iterdir() if path.is_file()]
    assert not any("@NAME@" in text for text in texts)
    assert 'PipelineServer("hello")' in Path("below/hello/web_server.py").read_text()
    assert load_config("below/hello/config.yml").warnings == ()
    assert requirements("below/hello") == [LINE], "nobody else's package comes by our name"
    assert Path("below/hello/wheels", WHEEL.name).read_bytes() == WHEEL.data
    assert "cd below/hello && pipeline serve --reload" in capsys.readouterr().out


def test_the_current_folder_may_be_it(capsys):
    Path("notes.txt").write_text("kept")
    assert main(["init", ".", "--name", "hello"]) == 0
    assert {path.name for path in Path().iterdir()} == {*FILES, "notes.txt"}
    assert "serve it: pipeline serve" in capsys.readouterr().out


def test_no_file_is_replaced(capsys):
    Path("hello").mkdir()
    Path("hello/config.yml").write_text("mine")
    assert main(["init", "hello"]) == 1
    assert capsys.readouterr().err == (
        "pipeline init: hello/config.yml is there already; nothing was written\n"
    )
    assert [path.name for path in Path("hello").iterdir()] == ["config.yml"]


def test_a_file_in_the_place_of_the_folder_is_named(capsys):
    Path("hello").write_text("")
    assert main(["init", "hello"]) == 1
    assert "pipeline init: hello" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["9x", "a b", "ä", "api", "v2", "health", "x" * 64])
def test_a_name_that_cannot_be_one_is_refused(name, capsys):
    assert main(["init", name]) == 1
    assert "cannot be a service's name" in capsys.readouterr().err
    assert list(Path().iterdir()) == []


def test_the_image_of_a_new_service_equals_that_of_deploy():
    assert service_files("x")["Dockerfile"] == (ROOT / "deploy/service/Dockerfile").read_bytes()


# dockerize --------------------------------------------------------------------------------


def service(config: str) -> None:
    Path("web_server.py").write_text("")
    Path("config.yml").write_text(config)


def test_the_image_has_the_ports_of_the_service(capsys):
    service("http_port: 9999\n")
    assert main(["dockerize"]) == 0
    dockerfile = Path("Dockerfile").read_text()
    assert "HTTP_PORT=9999" in dockerfile
    assert "EXPOSE 10000 9999" in dockerfile
    assert "18071" not in dockerfile
    assert requirements() == [LINE]
    assert "add what the service imports" in capsys.readouterr().out


def test_ports_that_are_each_others_are_not_mixed_up():
    service("http_port: 18070\nrpc_port: 18071\n")
    assert main(["dockerize"]) == 0
    assert "EXPOSE 18071 18070" in Path("Dockerfile").read_text()


@pytest.mark.parametrize("force", [[], ["--force"]])
def test_requirements_that_are_there_stay(capsys, force):
    service("http_port: 9999\n")
    Path("requirements.txt").write_text("pipeline-serving[onnx]\n")
    assert main(["dockerize", *force]) == 0
    assert Path("requirements.txt").read_text() == "pipeline-serving[onnx]\n"
    out = capsys.readouterr().out
    assert f"requirements.txt needs this line for the library:\n  {LINE}\n" in out
    Path("requirements.txt").write_text(f"{LINE}\nnumpy\n")
    assert main(["dockerize", "--force"]) == 0
    assert "requirements.txt is to have" not in capsys.readouterr().out.replace("\n", "")


def test_missing_files_are_written_and_existing_ones_are_kept(capsys):
    service("http_port: 9999\n")
    assert main(["dockerize"]) == 0
    Path("Dockerfile").unlink()
    Path(".dockerignore").write_text("mine")
    capsys.readouterr()
    assert main(["dockerize"]) == 0
    assert "HTTP_PORT=9999" in Path("Dockerfile").read_text()
    assert Path(".dockerignore").read_text() == "mine"
    out = capsys.readouterr().out
    assert "written: Dockerfile\n" in out
    assert "kept: .dockerignore, which was there already\n" in out


def test_files_are_replaced_by_force_only(capsys):
    service("http_port: 9999\n")
    assert main(["dockerize"]) == 0
    Path("Dockerfile").write_text("mine")
    assert main(["dockerize"]) == 1
    assert "Dockerfile is there already: --force replaces it" in capsys.readouterr().err
    assert Path("Dockerfile").read_text() == "mine"
    assert main(["dockerize", "--force"]) == 0
    assert Path("Dockerfile").read_text() != "mine"


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ("rpc_port: 18070\n", "config.yml: http_port: the image's healthcheck needs a fixed port"),
        ("http_port: 0\n", "config.yml:1: http_port: the image's healthcheck needs a fixed port"),
        ("http_port: [\n", "not valid YAML"),
    ],
)
def test_an_unknown_port_is_refused(config, said, capsys):
    service(config)
    assert main(["dockerize"]) == 1
    assert said in capsys.readouterr().err


def test_a_folder_without_a_service_is_named(capsys):
    assert main(["dockerize", "absent"]) == 1
    assert "absent/web_server.py: no such file; the image runs it" in capsys.readouterr().err
