"""`paddle_serving_server.util` and `.pipeline.util` under our names."""

from __future__ import annotations

import json
import os

import pytest

from pipeline.config.schema import load_config
from pipeline.dropin.server.pipeline.util import (
    NameGenerator,
    ThreadIdGenerator,
)
from pipeline.dropin.server.serve import main as serve
from pipeline.dropin.server.util import (
    ArgsParser,
    dump_pid_file,
)

CONFIG = """
rpc_port: 9998
op:
  det:
    concurrency: 1
    local_service_conf:
      model_config: det_model
"""


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "config.yml"
    path.write_text(CONFIG)
    return str(path)


def test_the_configuration_is_read_and_options_are_set_in_it(config):
    options = ["op.det.concurrency=4", "op.det.local_service_conf.devices=0", "dag.retry=2"]
    args = ArgsParser().parse_args(["-c", config, "-o", *options])
    assert args.config == config
    assert args.conf_dict == {
        "rpc_port": 9998,
        "op": {
            "det": {
                "concurrency": 4,
                "local_service_conf": {"model_config": "det_model", "devices": "0"},
            }
        },
        "dag": {"retry": 2},
    }
    assert load_config(yml_dict=args.conf_dict).op["det"].concurrency == 4


def test_without_options_it_is_the_file(config):
    assert ArgsParser().parse_args(["--config", config]).conf_dict["rpc_port"] == 9998


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("True", True),
        ("False", False),
        ("3", 3),
        ("0.5", 0.5),
        ("a=b", "a=b"),
        ("", ""),
        ("true", "true"),
    ],
)
def test_the_text_of_an_option_becomes_a_value(config, text, value):
    args = ArgsParser().parse_args(["-c", config, "-o", f"dag.new={text}"])
    result = args.conf_dict["dag"]["new"]
    assert (result, type(result)) == (value, type(value))


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ([], "--config config.yml"),
        (["-c", "absent.yml"], "absent.yml: No such file"),
        (["-c", "{config}", "-o", "retry"], "option 'retry' is not of the form key.key=value"),
        (["-c", "{config}", "-o", "dag..retry=1"], "not of the form"),
        (["-c", "{config}", "-o", "rpc_port.x=1"], "rpc_port is a value"),
    ],
)
def test_an_invalid_argument_ends_the_script_with_a_message(config, arguments, text, capsys):
    with pytest.raises(SystemExit) as caught:
        ArgsParser().parse_args([part.format(config=config) for part in arguments])
    assert caught.value.code == 2
    assert text in capsys.readouterr().err


@pytest.mark.parametrize("text", ["- 1", "!!python/object/apply:os.getcwd []", "a: 1\na: 2"])
def test_a_file_that_is_not_a_plain_mapping_is_refused(tmp_path, text):
    path = tmp_path / "config.yml"
    path.write_text(text)
    with pytest.raises(SystemExit):
        ArgsParser().parse_args(["-c", str(path)])


def test_the_process_file_has_one_entry_for_each_port(tmp_path, monkeypatch):
    monkeypatch.setenv("SERVING_HOME", str(tmp_path))
    dump_pid_file([1, 2], "first")
    dump_pid_file([3], "second")
    dump_pid_file([2], "third")
    entries = json.loads((tmp_path / "ProcessInfo.json").read_text())
    assert [(entry["model"], entry["port"]) for entry in entries] == [
        ("second", [3]),
        ("third", [2]),
    ]
    assert {entry["pid"] for entry in entries} == {os.getpid()}


def test_names_and_numbers_are_counted():
    names = NameGenerator("Op")
    assert [names.next(), names.next()] == ["Op0", "Op1"]
    ids = ThreadIdGenerator(max_id=5, base_counter=1, step=2)
    assert [ids.next() for _ in range(4)] == [1, 3, 1, 3]


@pytest.mark.parametrize(
    ("command", "instead"),
    [("stop", "`kill PID`"), ("kill", "`kill -9 PID`"), ("check", "pipeline check config.yml")],
)
def test_an_unsupported_command_names_the_replacement(command, instead, capsys):
    assert serve([command]) == 2
    err = capsys.readouterr().err
    assert f"no command {command!r}" in err
    assert instead in err
