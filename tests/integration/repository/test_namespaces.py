"""Models of one name in two repositories: which one a request means, and its errors."""

from __future__ import annotations

import contextlib
import shutil

from doubles import http, wait_until
from repositories import SERVER, add_ensemble, add_identity, control, infer

from pipeline.repository.control import ControlSettings
from pipeline.repository.server import RepositorySettings, new_service
from pipeline.system.event_loop import LoopThread

AMBIGUOUS = (
    400,
    "Request for unknown model: There are 2 identifiers of model 'part' in global map, model "
    "namespace must be provided to resolve ambiguity.",
)


@contextlib.contextmanager
def serving_two(tmp_path, mode="explicit", **more):
    """A server of the repositories a and b, in each of which a `part` has so many samples."""
    for name, most in (("a", 3), ("b", 5)):
        add_identity(tmp_path / name, "part", 1, most=most)
        folder = add_ensemble(tmp_path / name, f"whole_{name}", of="part")
        text = (folder / "config.pbtxt").read_text()
        (folder / "config.pbtxt").write_text(text.replace("size: 8", f"size: {min(most, 3)}"))
    with serving_of(tmp_path / "a", tmp_path / "b", mode=mode, **more) as server:
        yield server


@contextlib.contextmanager
def serving_of(*repositories, mode="explicit", **more):
    settings = ControlSettings(repositories, mode, is_namespaced=True, **more)
    service = new_service(RepositorySettings(settings, SERVER))
    with contextlib.closing(LoopThread()) as thread:
        thread.run(service.start())
        try:
            yield service
        finally:
            thread.run(service.stop())


def used(server, name):
    """Keys of models that have had requests, and end with `name`."""
    _, _, said = http(server, "GET", "/v2/models/stats")
    of_name = (item for item in said["model_stats"] if item["name"].endswith(name))
    return {item["name"].rpartition("::")[0][-1]: item["inference_count"] for item in of_name}


def index(server):
    _, _, said = http(server, "POST", "/v2/repository/index", {})
    return sorted((item["name"], item.get("state", "")) for item in said)


def test_an_ensemble_uses_the_model_of_its_own_repository(tmp_path):
    with serving_two(tmp_path, mode="none") as server:
        assert infer(server, "whole_a", [1.0]) == (200, {"OUTPUT0": [1.0]})
        assert used(server, "::part") == {"a": 1, "b": 0}
        assert infer(server, "whole_b", [1.0])[0] == 200
        assert used(server, "::part") == {"a": 1, "b": 1}
        assert infer(server, "part", [1.0]) == AMBIGUOUS
        assert http(server, "GET", "/v2/models/part")[0] == 400
        assert http(server, "GET", "/v2/models/whole_a")[2]["name"] == "whole_a"
        assert index(server) == [("part", "READY")] * 2 + [
            ("whole_a", "READY"),
            ("whole_b", "READY"),
        ]


def test_the_meaning_of_a_name_follows_changes(tmp_path):
    with serving_two(tmp_path, models=("whole_b",)) as server:
        kept = shutil.move(tmp_path / "a" / "part", tmp_path / "kept")
        control(server, "part", "unload")
        assert infer(server, "whole_b", [1.0])[0] == 404
        assert control(server, "whole_a", "load") == (200, None)
        for name in ("whole_a", "whole_b", "part"):
            assert infer(server, name, [1.0]) == (200, {"OUTPUT0": [1.0]}), name
        assert used(server, "::part") == {"b": 3}
        shutil.move(kept, tmp_path / "a" / "part")
        assert control(server, "whole_a", "load") == (200, None)
        assert infer(server, "whole_a", [1.0])[0] == 200
        assert used(server, "::part") == {"a": 1, "b": 3}
        assert infer(server, "part", [1.0]) == AMBIGUOUS


def test_a_dependent_of_an_ambiguous_model_is_unloaded(tmp_path):
    for name in ("a", "b"):
        add_identity(tmp_path / name, "part", 1)
    add_ensemble(tmp_path / "c", "other", of="part")
    kept = shutil.move(tmp_path / "a" / "part", tmp_path / "kept")
    with serving_of(tmp_path / "a", tmp_path / "b", tmp_path / "c") as server:
        assert control(server, "other", "load") == (200, None)
        assert infer(server, "other", [1.0])[0] == 200
        shutil.move(kept, tmp_path / "a" / "part")
        assert control(server, "part", "load") == (200, None)
        assert infer(server, "other", [1.0])[0] == 404
        there = [("other", "UNAVAILABLE"), ("part", "READY"), ("part", "READY")]
        wait_until(lambda: index(server) == there)
        assert control(server, "part", "unload") == (200, None)
        assert infer(server, "part", [1.0])[0] == 404
