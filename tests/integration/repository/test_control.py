"""ModelControl: what is loaded and unloaded, in which order, and what is said of it."""

from __future__ import annotations

import asyncio
import os
import shutil

import pytest
from doubles import on_loop, until
from repositories import MakerDouble, add_ensemble, add_identity

from pipeline.engine.models import ModelRegistry
from pipeline.errors import ConfigError, InitError
from pipeline.frontends.v2.control import Overrides
from pipeline.frontends.v2.errors import V2Error, V2Status
from pipeline.repository.control import ControlSettings, ModelControl
from pipeline.repository.versions import ModelVersions

JSON = '{"backend": "identity", "max_batch_size": 2}'


class Controlled:
    """A control over doubles, and what it has done."""

    def __init__(self, *repositories, mode="explicit", **more):
        self.maker = MakerDouble()
        self.models = ModelRegistry(is_repository=True)
        settings = ControlSettings(tuple(repositories), mode, **more)
        self.versions = ModelVersions(self.models, self.maker, settings.load_retries)
        self.told = []
        self.control = ModelControl(settings, self.versions, self.told.append)

    async def __aenter__(self):
        await self.control.start()
        return self

    async def __aexit__(self, *_):
        self.maker.may_end.set()
        await self.control.stop()

    async def load(self, name, config=None, **files):
        await self.control.load(name, Overrides(config, files))

    async def refused(self, change):
        with pytest.raises(V2Error) as caught:
            await change
        return caught.value.kind, str(caught.value)

    async def index(self):
        result = await self.control.index()
        return [(item.name, item.version, item.state, item.reason) for item in result]

    @property
    def shown(self):
        return sorted(f"{entry.name}:{entry.version}" for entry in self.models.entries())


def touch(path):
    """Make a file newer than every other."""
    now = path.stat().st_mtime_ns + 10**9
    os.utime(path, ns=(now, now))


@on_loop
async def test_mode_none_loads_all_models_and_accepts_no_commands(tmp_path):
    add_identity(tmp_path, "a", 1, 3)
    add_identity(tmp_path, "b", 1)
    async with Controlled(tmp_path, mode="none") as there:
        assert there.shown == ["a:3", "b:1"], "the policy is: the latest version"
        assert there.control.is_ready
        refusal = (
            V2Status.UNAVAILABLE,
            "explicit model load / unload is not allowed if polling is enabled",
        )
        assert await there.refused(there.load("a")) == refusal
        assert await there.refused(there.control.unload("a")) == refusal
    assert sorted(there.maker.ended) == ["a:3", "b:1"]


@on_loop
async def test_mode_explicit_loads_requested_models(tmp_path):
    add_identity(tmp_path, "a", 1)
    add_identity(tmp_path, "b", 1)
    async with Controlled(tmp_path, models=("b",)) as there:
        assert there.shown == ["b:1"]
        assert await there.index() == [("a", "", "", ""), ("b", "1", "READY", "")]
        await there.load("a")
        await there.load("a")
        assert there.maker.made == ["b:1", "a:1"], "what has not changed is not loaded again"
        await there.control.unload("a")
        await there.control.unload("a")
        await there.control.unload("nobody")
        await until(lambda: "a:1" in there.maker.ended)
        assert there.shown == ["b:1"]
        assert (await there.index())[0] == ("a", "1", "UNAVAILABLE", "unloaded")
        assert there.control.is_ready, "what was unloaded is not missed"


@on_loop
async def test_requests_are_finished_while_a_model_unloads(tmp_path):
    add_identity(tmp_path, "a", 1)
    async with Controlled(tmp_path, models=("a",)) as there:
        there.maker.may_end.clear()
        await there.control.unload("a")
        assert (await there.index())[0] == ("a", "1", "UNLOADING", "")
        await asyncio.sleep(0)
        assert there.models.latest("a") is None
        await there.load("a")
        assert there.models.latest("a") is not None, "it comes back beside the one that goes"
        there.maker.may_end.set()
        await until(lambda: there.maker.ended == ["a:1"])
        assert there.models.latest("a") is not None
        assert (await there.index())[0] == ("a", "1", "READY", "")


@on_loop
async def test_a_changed_file_is_loaded_in_the_place_of_the_old_one(tmp_path):
    folder = add_identity(tmp_path, "a", 1)
    async with Controlled(tmp_path, models=("a",)) as there:
        before = there.models.latest("a").served
        touch(folder / "config.pbtxt")
        await there.load("a")
        assert there.maker.made == ["a:1", "a:1"]
        assert there.models.latest("a").served is not before
        await until(lambda: there.maker.ended == ["a:1"])


@on_loop
async def test_a_failed_load_leaves_the_old_one_serving(tmp_path):
    folder = add_identity(tmp_path, "a", 1)
    async with Controlled(tmp_path, models=("a",)) as there:
        before = there.models.latest("a").served
        touch(folder / "config.pbtxt")
        there.maker.broken = {"a"}
        assert await there.refused(there.load("a")) == (
            V2Status.INVALID,
            "load failed for model 'a': version 1 is at UNAVAILABLE state: Invalid argument: "
            "it is broken;\n",
        )
        assert there.models.latest("a").served is before
        assert there.told[-1], "of the old one"
        assert (await there.index())[0] == ("a", "1", "READY", "")
        there.maker.broken = set()
        await there.load("a")
        assert there.maker.made == ["a:1", "a:1"], "the next one tries again"


@on_loop
@pytest.mark.parametrize(("failures", "is_loaded"), [(2, True), (3, False)])
async def test_a_load_that_fails_is_tried_again(tmp_path, failures, is_loaded):
    add_identity(tmp_path, "a", 1)
    async with Controlled(tmp_path, load_retries=2) as there:
        there.maker.broken, there.maker.failures = {"a"}, failures
        if is_loaded:
            await there.load("a")
        else:
            assert "it is broken" in (await there.refused(there.load("a")))[1]
        assert there.shown == ["a:1"] * is_loaded


@on_loop
async def test_the_named_configuration_of_a_model_counts_if_it_has_one(tmp_path):
    for name in "ab":
        add_identity(tmp_path, name, 1, 2)
    (tmp_path / "a" / "configs").mkdir()
    named = (tmp_path / "a" / "config.pbtxt").read_text() + "version_policy { all {} }"
    (tmp_path / "a" / "configs" / "small.pbtxt").write_text(named)
    async with Controlled(tmp_path, config_name="small") as there:
        await there.load("a")
        await there.load("b")
        assert there.shown == ["a:1", "a:2", "b:2"]


@on_loop
async def test_a_load_is_complete_or_fails(tmp_path):
    add_identity(tmp_path, "a", 1, 2, more="version_policy { all {} }")
    async with Controlled(tmp_path) as there:
        there.maker.broken = {"a:2"}
        kind, text = await there.refused(there.load("a"))
        assert kind is V2Status.INVALID
        assert "version 2 is at UNAVAILABLE state" in text
        assert there.shown == []
        await until(lambda: there.maker.ended == ["a:1"])
        assert not there.control.is_ready, "strict: a model that failed"
        there.maker.broken = set()
        await there.load("a")
        assert there.shown == ["a:1", "a:2"]
        assert there.control.is_ready
        assert there.told[-2:] == [False, True]


@on_loop
async def test_a_version_next_to_a_failed_one_is_shown_as_unloaded(tmp_path):
    add_identity(tmp_path, "a", 1, 3, more="version_policy { all {} }")
    async with Controlled(tmp_path) as there:
        there.maker.broken = {"a:3"}
        await there.refused(there.load("a"))
        await until(lambda: there.maker.ended == ["a:1"])
        states = [(version, state) for _, version, state, _ in await there.index()]
        assert states == [("1", "UNAVAILABLE"), ("3", "UNAVAILABLE")]
        assert not there.control.is_ready


@on_loop
async def test_a_removed_model_remains_known(tmp_path):
    add_identity(tmp_path, "a", 1)
    add_identity(tmp_path, "nothing")
    async with Controlled(tmp_path) as there:
        assert not there.control.has("a")
        await there.load("a")
        await there.control.unload("a")
        await there.refused(there.load("nothing"))
        assert there.control.has("a")
        assert (there.control.has("a", 1), there.control.has("a", 2)) == (True, False)
        assert there.control.has("nothing")
        assert not there.control.has("nobody")


@on_loop
async def test_a_configuration_that_is_sent_counts_until_the_files_change(tmp_path):
    folder = add_identity(tmp_path, "a", 1)
    async with Controlled(tmp_path, models=("a",)) as there:
        await there.load("a", JSON)
        assert there.models.latest("a").served.model_config.max_batch_size == 2
        await there.load("a")
        assert there.models.latest("a").served.model_config.max_batch_size == 2
        touch(folder / "config.pbtxt")
        await there.load("a")
        assert there.models.latest("a").served.model_config.max_batch_size == 8


@on_loop
async def test_files_that_are_sent_are_a_model(tmp_path):
    add_identity(tmp_path, "a", 1)
    async with Controlled(tmp_path) as there:
        await there.load("mine", JSON, **{"7/model.bin": b"content"})
        source = there.models.latest("mine").served.source
        assert (source.path / "model.bin").read_bytes() == b"content"
        assert there.shown == ["mine:7"]
        failed = (
            V2Status.INTERNAL,
            "failed to load 'mine', failed to poll from model repository",
        )
        kind, text = await there.refused(there.load("mine", JSON, **{"../../out": b""}))
        assert kind is V2Status.INVALID
        assert "file:../../out is not a path below the folder of the model" in text
        assert await there.refused(there.load("mine", None, **{"1/model.bin": b""})) == failed
        assert there.shown == ["mine:7"]
        folder = source.folder
    assert not folder.exists()


@pytest.mark.parametrize(
    ("name", "kind", "text"),
    [
        ("nope", V2Status.INTERNAL, "failed to load 'nope', failed to poll from model repository"),
        ("", V2Status.INVALID, "Model name cannot be empty. Please enter a valid name to deploy."),
        ("../a", V2Status.INVALID, "model name must not contain path traversal characters"),
        ("..", V2Status.INVALID, "model name must not contain path traversal characters"),
    ],
)
@on_loop
async def test_an_invalid_model_is_refused(tmp_path, name, kind, text):
    add_identity(tmp_path, "a", 1)
    async with Controlled(tmp_path) as there:
        result = await there.refused(there.load(name))
        assert result[0] is kind
        assert text in result[1]


@on_loop
async def test_an_ensemble_loads_its_models_and_unloads_with_one_of_them(tmp_path):
    add_identity(tmp_path, "a", 1)
    add_ensemble(tmp_path, "both", of="a")
    async with Controlled(tmp_path) as there:
        await there.load("both")
        assert there.maker.made == ["a:1", "both:1"], "what it is made of comes first"
        await there.control.unload("both", with_dependents=True)
        await until(lambda: there.shown == [])
        await there.load("both")
        await there.control.unload("a")
        await until(lambda: there.shown == [])
        assert [reason for *_, reason in await there.index()] == ["unloaded", "unloaded"]
        assert there.control.is_ready, "none has failed"
        await there.load("a")
        assert there.shown == ["a:1", "both:1"], "it comes back when it has all again"
        await there.control.unload("both", with_dependents=True)
        await until(lambda: there.shown == ["a:1"])


@on_loop
async def test_explicitly_loaded_dependents_stay(tmp_path):
    add_identity(tmp_path, "a", 1)
    add_identity(tmp_path, "b", 1)
    add_ensemble(tmp_path, "of a", of="a")
    add_ensemble(tmp_path, "of b", of="b")
    add_ensemble(tmp_path, "of b 2", of="b")
    async with Controlled(tmp_path, models=("a", "of a", "of b", "of b 2")) as there:
        await there.control.unload("of a", with_dependents=True)
        await there.control.unload("of b", with_dependents=True)
        await until(lambda: there.shown == ["a:1", "b:1", "of b 2:1"])


@on_loop
async def test_an_ensemble_that_fails_leaves_its_models(tmp_path):
    add_identity(tmp_path, "a", 1)
    add_ensemble(tmp_path, "both", of="a")
    async with Controlled(tmp_path) as there:
        there.maker.broken = {"both"}
        await there.refused(there.load("both"))
        assert there.shown == ["a:1"]
        there.maker.broken = {"a"}
        await there.control.unload("a")
        await until(lambda: there.shown == [])
        _, text = await there.refused(there.load("both"))
        assert "ensemble 'both' depends on 'a' which has no loaded version." in text


@on_loop
async def test_polling_loads_new_models_and_unloads_removed_ones(tmp_path):
    folder = add_identity(tmp_path, "a", 1)
    async with Controlled(tmp_path, mode="poll", poll_s=0.01) as there:
        add_identity(tmp_path, "b", 1)
        await until(lambda: there.shown == ["a:1", "b:1"])
        (folder / "2").mkdir()
        await until(lambda: "a:2" in there.shown and "a:1" not in there.shown)
        (folder / "config.pbtxt").unlink()
        (folder / "2").rmdir()
        (folder / "1").rmdir()
        folder.rmdir()
        await until(lambda: there.shown == ["b:1"])


@on_loop
async def test_two_loads_of_one_model_run_one_after_the_other(tmp_path):
    add_identity(tmp_path, "a", 1)
    async with Controlled(tmp_path) as there:
        there.maker.may_load.clear()
        one, other = (asyncio.ensure_future(there.load("a", JSON)) for _ in range(2))
        await until(lambda: bool(there.control._changing))
        assert (await there.index())[0] == ("a", "1", "LOADING", "")
        there.maker.may_load.set()
        await asyncio.gather(one, other)
        assert there.maker.made == ["a:1", "a:1"]
        await until(lambda: there.maker.ended == ["a:1"])
        assert there.shown == ["a:1"]


@on_loop
async def test_the_index_follows_a_model_through_all_states(tmp_path):
    folder = add_identity(tmp_path, "a", 1)
    async with Controlled(tmp_path) as there:

        async def states(*expected):
            assert [(version, *rest) for _, version, *rest in await there.index()] == [*expected]

        async def held(change, *expected):
            there.maker.may_load.clear()
            load = asyncio.ensure_future(change)
            await until(lambda: bool(there.maker.waiting))
            await states(*expected)
            there.maker.may_load.set()
            await load

        await states(("", "", ""))
        await held(there.load("a"), ("1", "LOADING", ""))
        await states(("1", "READY", ""))
        (folder / "2").mkdir()
        await held(there.load("a"), ("1", "READY", ""), ("2", "LOADING", ""))
        await until(lambda: there.maker.ended == ["a:1"])
        await states(("1", "UNAVAILABLE", "unloaded"), ("2", "READY", ""))
        touch(folder / "config.pbtxt")
        await held(there.load("a"), ("1", "UNAVAILABLE", "unloaded"), ("2", "READY", ""))
        there.maker.may_end.clear()
        await there.control.unload("a")
        await states(("1", "UNAVAILABLE", "unloaded"), ("2", "UNLOADING", ""))
        there.maker.may_end.set()
        await until(lambda: there.maker.ended == ["a:1", "a:2", "a:2"])
        await states(("1", "UNAVAILABLE", "unloaded"), ("2", "UNAVAILABLE", "unloaded"))
        shutil.rmtree(folder)
        await states()


@on_loop
async def test_a_server_with_failing_models_exits_unless_configured(tmp_path):
    (add_identity(tmp_path, "a", 1) / "config.pbtxt").write_text("nonsense")
    add_identity(tmp_path, "b", 1)
    failing = Controlled(tmp_path, mode="none")
    with pytest.raises(InitError, match="failed to load all models"):
        await failing.control.start()
    assert not failing.control.is_ready, "not for a moment"
    await failing.control.stop()
    async with Controlled(tmp_path, mode="none", exits=False) as there:
        assert there.shown == ["b:1"]


@on_loop
async def test_a_repository_must_be_a_folder_and_a_star_must_be_the_only_model(tmp_path):
    with pytest.raises(ConfigError, match="repository path is not a valid directory"):
        await Controlled(tmp_path / "none").control.start()
    with pytest.raises(ConfigError, match="must be the ONLY startup model"):
        await Controlled(tmp_path, models=("*", "a")).control.start()
    add_identity(tmp_path, "a", 1)
    async with Controlled(tmp_path, models=("*",)) as there:
        assert there.shown == ["a:1"]


@on_loop
async def test_a_name_in_two_repositories_is_not_a_model(tmp_path):
    for name in ("one", "two"):
        add_identity(tmp_path / name, "a", 1)
    add_identity(tmp_path / "two", "b", 1)
    async with Controlled(tmp_path / "one", tmp_path / "two") as there:
        kind, _ = await there.refused(there.load("a"))
        assert kind is V2Status.INTERNAL
        assert await there.index() == [
            ("a", "", "UNAVAILABLE", "model appears in two or more repositories"),
            ("b", "", "", ""),
        ]
