"""Models and versions are found in the folders of repositories, and changes in them are seen."""

from __future__ import annotations

import os

import pytest

from pipeline.errors import ConfigError
from pipeline.proto.inference_v2_pb2 import ModelConfig
from pipeline.repository.model_folders import look, model_folders


@pytest.fixture
def repository(tmp_path):
    for path in (
        "a/1/model.py",
        "a/3/model.py",
        "a/12/model.py",
        "a/config.pbtxt",
        "b/1/model.onnx",
    ):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).touch()
    return tmp_path


def policy(**choice) -> ModelConfig:
    return ModelConfig(version_policy=choice)


def test_models_and_versions_are_listed(repository):
    (repository / "README.md").touch()
    result = model_folders([repository])
    assert {name: list(folder.versions) for name, folder in result.items()} == {
        "a": [1, 3, 12],
        "b": [1],
    }
    assert result["b"].files == ["model.onnx"]


def test_a_folder_that_is_not_a_version_is_ignored(repository):
    for name in ("01", "x", "-1", "warmup", "initial_state", "configs", "0"):
        (repository / "b" / name).mkdir()
    assert list(look(repository / "b").versions) == [0, 1]


def test_a_name_in_two_repositories_is_not_a_model(repository, tmp_path_factory, caplog):
    other = tmp_path_factory.mktemp("other")
    (other / "a" / "1").mkdir(parents=True)
    assert list(model_folders([repository, other])) == ["b"]
    assert "'a': not unique across all model repositories" in caplog.text


def test_a_repository_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"failed to open directory .*nope: No such file"):
        model_folders([tmp_path / "nope"])


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ({"latest": {}}, []),
        ({"latest": {"num_versions": 1}}, [12]),
        ({"latest": {"num_versions": 2}}, [3, 12]),
        ({"latest": {"num_versions": 9}}, [1, 3, 12]),
        ({"all": {}}, [1, 3, 12]),
        ({"specific": {"versions": [3, 1, 7]}}, [1, 3]),
    ],
)
def test_the_policy_chooses_versions(repository, choice, expected):
    assert look(repository / "a").wanted(policy(**choice)) == expected


def test_a_policy_may_leave_no_version(repository):
    assert look(repository / "a").wanted(policy(specific={"versions": [7]})) == []


def touched(path, ns):
    path.touch()
    os.utime(path, ns=(ns, ns))


def test_changes_are_detected_per_version(repository):
    folder, later = repository / "a", 2**62
    before = look(folder).stamp
    touched(folder / "3" / "model.py", later)
    after = look(folder).stamp
    assert [after.has_other_files(before, version) for version in (1, 3, 12)] == [0, 1, 0]
    touched(folder / "config.pbtxt", later)
    assert look(folder).stamp.config != after.config
    touched(folder / "labels.txt", later + 1)
    last = look(folder).stamp
    (folder / "3" / "__pycache__").mkdir()
    (folder / "3" / "__pycache__" / "model.pyc").touch()
    (folder / "__pycache__").mkdir()
    assert look(folder).stamp == last, "bytecode is not a change"
    assert set(look(folder).versions) == {1, 3, 12}
    (folder / "3" / "model.py").unlink()
    assert look(folder).stamp != last
    assert [last.has_other_files(after, version) for version in (1, 3, 12)] == [1, 1, 1]
