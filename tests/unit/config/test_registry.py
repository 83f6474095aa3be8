"""The registry of what config.yml names: built in, by entry points, and from a script."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from pipeline.config import registry
from pipeline.errors import ConfigError

Install = Callable[..., None]


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Forget plug-ins and what scripts registered, before and after."""
    monkeypatch.setattr(registry, "_registered", {})
    registry._plug_ins.cache_clear()
    yield
    registry._plug_ins.cache_clear()


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Install a distribution, as far as importlib.metadata can tell."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def install(distribution: str, code: str = "", **points: str) -> None:
        module = distribution.replace("-", "_")
        (tmp_path / f"{module}.py").write_text(code)
        info = tmp_path / f"{module}-1.2.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.2\n"
        )
        lines = [f"[pipeline.sinks]\n{name} = {place}\n" for name, place in points.items()]
        (info / "entry_points.txt").write_text("\n".join(lines))
        monkeypatch.delitem(sys.modules, module, raising=False)

    return install


@pytest.fixture
def built_in(monkeypatch: pytest.MonkeyPatch) -> None:
    sinks = {"ours": "pipeline.errors:InitError"}
    monkeypatch.setattr(registry, "BUILT_IN", {**registry.BUILT_IN, "sinks": sinks})


def test_one_of_ours_is_imported_from_its_place(built_in):
    assert registry.find("sinks", "ours").__name__ == "InitError"


def test_for_one_of_ours_no_plug_in_is_looked_for(built_in, monkeypatch):
    monkeypatch.setattr(registry.metadata, "entry_points", lambda group: pytest.fail("read"))
    assert registry.is_known("sinks", "ours")
    assert registry.find("sinks", "ours")


def test_a_plug_in_is_found_by_its_entry_point(install):
    install("toy-sinks", "def toy(): ...", toy="toy_sinks:toy")
    assert registry.is_known("sinks", "toy")
    assert registry.find("sinks", "toy").__module__ == "toy_sinks"


def test_a_plug_in_is_imported_only_when_it_is_asked_for(install):
    install("toy-sinks", "raise RuntimeError", toy="toy_sinks:toy")
    assert registry.names("sinks") == ("toy",)
    assert "toy_sinks" not in sys.modules


def test_names_are_ours_then_the_scripts_then_those_of_plug_ins(built_in, install):
    install("toy-sinks", toy="toy_sinks:toy")
    registry.register("sinks", "mine", object())
    assert registry.names("sinks") == ("ours", "mine", "toy")


def test_a_script_registers_an_object_or_its_place():
    mine = object()
    registry.register("sinks", "mine", mine)
    registry.register("filters", "mine", "pipeline.errors:InitError")
    assert registry.find("sinks", "mine") is mine
    assert registry.find("filters", "mine").__name__ == "InitError"


def test_a_name_is_registered_once_but_the_same_may_come_again(built_in):
    registry.register("sinks", "mine", print)
    registry.register("sinks", "mine", print)
    with pytest.raises(ConfigError, match="the name 'mine' is taken among sinks"):
        registry.register("sinks", "mine", object())
    with pytest.raises(ConfigError, match="the name 'ours' is taken among sinks"):
        registry.register("sinks", "ours", object())


def test_there_is_no_kind_but_the_known_ones():
    with pytest.raises(ConfigError, match=r"expected engines or clients or .*, found 'sink'"):
        registry.register("sink", "mine", object())  # type: ignore[arg-type]


def test_the_options_of_an_implementation_are_its_struct():
    class Sink:
        class Options(msgspec.Struct):
            path: str

    registry.register("sinks", "with", Sink)
    registry.register("sinks", "without", print)
    assert registry.options_of("sinks", "with") is Sink.Options
    assert registry.options_of("sinks", "without") is None


def test_an_unknown_name_is_told_with_those_that_are_known(built_in, install):
    install("toy-sinks", toy="toy_sinks:toy")
    assert not registry.is_known("sinks", "tuy")
    with pytest.raises(ConfigError) as error:
        registry.find("sinks", "tuy")
    assert str(error.value) == "sinks: expected ours or toy, found 'tuy'; did you mean toy?"


def test_where_there_is_nothing_the_text_says_so():
    with pytest.raises(ConfigError, match="sinks: expected none, as no plug-in is installed"):
        registry.find("sinks", "toy")


def test_a_plug_in_that_cannot_be_imported_is_told_with_its_distribution(install):
    install("toy-sinks", "import nowhere_at_all", toy="toy_sinks:toy")
    with pytest.raises(ConfigError) as error:
        registry.find("sinks", "toy")
    assert str(error.value) == (
        "the plug-in toy = toy_sinks:toy of toy-sinks 1.2 (entry point pipeline.sinks) cannot be "
        "loaded: ModuleNotFoundError: No module named 'nowhere_at_all'"
    )


def test_two_plug_ins_of_one_name_are_told_with_their_distributions(install):
    install("toy-sinks", toy="toy_sinks:toy")
    install("other", toy="other:toy")
    with pytest.raises(ConfigError, match="several plug-ins are called 'toy'") as error:
        registry.find("sinks", "toy")
    assert "of toy-sinks 1.2" in str(error.value)
    assert "of other 1.2" in str(error.value)


def test_a_plug_in_cannot_take_the_name_of_one_of_ours(built_in, install):
    install("toy-sinks", ours="toy_sinks:toy")
    with pytest.raises(ConfigError, match=r"of toy-sinks 1.2 .* name of one that is built in"):
        registry.names("sinks")
