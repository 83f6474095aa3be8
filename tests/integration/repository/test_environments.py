"""Python models with an interpreter of their own: as folder, as archive, and such as do not fit."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
from pathlib import Path

from doubles import http, wait_until
from repositories import add_python, control, serving

TELLS = """
import os, sys
import numpy as np
import triton_python_backend_utils as pb_utils
import only_there

class TritonPythonModel:
    def execute(self, requests):
        text = f"{only_there.WORD} {sys.prefix} {os.environ.get('ACTIVATED', '')} {os.getppid()}"
        array = np.array([text], np.object_)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", array)]) for _ in requests]
"""
COMPLETES = """
    @staticmethod
    def auto_complete_config(config):
        config.set_max_batch_size(0)
        config.add_input({"name": "INPUT0", "data_type": "TYPE_FP32", "dims": [-1]})
        config.add_output({"name": "OUTPUT0", "data_type": "TYPE_STRING", "dims": [-1]})
        return config
"""
TEXT = """
backend: "python"
input [ { name: "INPUT0" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_STRING dims: [ -1 ] } ]
"""


def environment(folder, word="word"):
    """A virtual environment of this interpreter with a module that this one has not."""
    command = [sys.executable, "-m", "venv", "--without-pip", str(folder)]
    subprocess.run(command, check=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "only_there.py").write_text(f"WORD = '{word}'\n")
    with (folder / "bin" / "activate").open("a") as script:
        script.write("\nexport ACTIVATED=yes$#\n")
    return folder


def packed(folder, archive):
    with tarfile.open(archive, "w:gz") as file:
        file.add(folder, ".")


def add(repository, name, path, code=TELLS, config=TEXT):
    folder = add_python(repository, name, code, config)
    text = f'parameters: {{ key: "EXECUTION_ENV_PATH" value: {{ string_value: "{path}" }} }}\n'
    (folder / "config.pbtxt").write_text(f"{config}{text}")
    return folder


def environment_of(server, model):
    sent = [{"name": "INPUT0", "datatype": "FP32", "shape": [1], "data": [1.0]}]
    status, _, answer = http(server, "POST", f"/v2/models/{model}/infer", {"inputs": sent})
    assert status == 200, answer
    return answer["outputs"][0]["data"][0].split(" ")


def test_models_share_an_environment_which_their_processes_run_in(tmp_path):
    place = environment(tmp_path / "elsewhere")
    repository = tmp_path / "models"
    for name in ("one", "other"):
        add(repository, name, place)
    completed = add(repository, "asks", place, TELLS + COMPLETES, 'backend: "python"\n')
    assert completed.is_dir()
    with serving(repository, mode="none") as server:
        words = [environment_of(server, name) for name in ("one", "other", "asks")]
    for word, prefix, activated, _ in words:
        assert (word, prefix, activated) == ("word", str(place), "yes0")
    assert len({parent for *_, parent in words}) == 1  # one process forks them all


def test_an_archive_in_the_folder_of_the_model_is_unpacked_after_a_change(tmp_path):
    repository = tmp_path / "models"
    folder = add(repository, "m", "$$TRITON_MODEL_DIRECTORY/env.tar.gz")
    packed(environment(tmp_path / "first", "first"), folder / "env.tar.gz")
    with serving(repository, models=("m",)) as server:
        word, prefix, _, parent = environment_of(server, "m")
        assert word == "first"
        assert not prefix.startswith(str(tmp_path / "first"))
        packed(environment(tmp_path / "second", "second"), folder / "env.tar.gz")
        os.utime(folder / "env.tar.gz", ns=(1, 2 * 10**18))
        assert control(server, "m", "load")[0] == 200
        assert environment_of(server, "m")[0] == "second"
        wait_until(lambda: not Path("/proc", parent).exists())  # nobody needs the first any more


def refused(repository, server, path):
    """The text of the error of a model that cannot be loaded."""
    add(repository, "m", path)
    status, text = control(server, "m", "load")
    assert status == 400
    return text


def hostile(archive, name):
    """An archive with a file that would lie elsewhere."""
    with tarfile.open(archive, "w:gz") as file:
        entry = tarfile.TarInfo(str(name))
        entry.size = 1
        file.addfile(entry, io.BytesIO(b"x"))
    return archive


def fake(folder, version, missing):
    """An interpreter that says so of itself."""
    (folder / "bin").mkdir(parents=True)
    program = folder / "bin" / "python"
    program.write_text(f"#!/bin/sh\necho '[{version}, {missing}]'\n")
    program.chmod(0o755)
    return folder


def test_an_unsuitable_environment_is_refused_with_advice(tmp_path):
    repository = tmp_path / "models"
    repository.mkdir()
    (tmp_path / "empty").mkdir()
    outside = tmp_path / "outside"
    cases = (
        (tmp_path / "nowhere", "cannot be read"),
        ("env", "is to be an absolute path"),
        (tmp_path / "empty", "has no bin/python"),
        (hostile(tmp_path / "dots.tar.gz", "../outside"), "cannot be unpacked"),
        (hostile(tmp_path / "root.tar.gz", outside), "has no bin/python"),  # it lies below
        (fake(tmp_path / "old", "[3, 8]", "[]"), "at least 3.11 is needed"),
        (
            fake(tmp_path / "other", "[3, 99]", '["msgspec", "dill"]'),
            "it lacks msgspec, dill: install this library",
        ),
        (fake(tmp_path / "broken", "", ""), "cannot be run"),
    )
    with serving(repository) as server:
        for path, text in cases:
            assert text in refused(repository, server, path)
        config = TEXT + 'parameters: { key: "workers" value: { string_value: "thread" } }\n'
        add(repository, "threads", fake(tmp_path / "env", "[3, 11]", "[]"), config=config)
        assert "workers is to be process" in control(server, "threads", "load")[1]
    assert not outside.exists()
