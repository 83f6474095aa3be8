"""The registry of what config.yml names: built in, by entry points, and from a script."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any

import msgspec
import pytest
from msgspec import Meta

from pipeline.config import registry
from pipeline.config.fields import Duration
from pipeline.config.schema import load_config
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


def test_a_built_in_name_is_imported_from_its_place(built_in):
    assert registry.find("sinks", "ours").__name__ == "InitError"


def test_for_a_built_in_name_no_plug_in_is_searched(built_in, monkeypatch):
    monkeypatch.setattr(metadata, "entry_points", lambda group: pytest.fail("read"))
    assert registry.known_as("sinks", "Ours") == "ours"
    assert registry.find("sinks", "ours")


def test_a_plug_in_is_found_by_its_entry_point(install):
    install("toy-sinks", "def toy(): ...", toy="toy_sinks:toy")
    assert registry.known_as("sinks", "TOY") == "toy"
    assert registry.find("sinks", "toy").__module__ == "toy_sinks"


def test_a_plug_in_is_imported_on_first_use(install):
    install("toy-sinks", "raise RuntimeError", toy="toy_sinks:toy")
    assert registry.names("sinks") == (*registry.BUILT_IN["sinks"], "toy")
    assert "toy_sinks" not in sys.modules


def test_names_are_ordered_by_built_in_script_and_plug_in(built_in, install):
    install("toy-sinks", toy="toy_sinks:toy")
    registry.register("sinks", "mine", object())
    assert registry.names("sinks") == ("ours", "mine", "toy")


def test_a_script_registers_an_object_or_its_place():
    mine = object()
    registry.register("sinks", "mine", mine)
    registry.register("filters", "mine", "pipeline.errors:InitError")
    assert registry.find("sinks", "mine") is mine
    assert registry.find("filters", "mine").__name__ == "InitError"


def test_a_name_is_registered_once_except_for_the_same_object(built_in):
    registry.register("sinks", "mine", print)
    registry.register("sinks", "mine", print)
    with pytest.raises(ConfigError, match="the name 'mine' is taken among sinks"):
        registry.register("sinks", "mine", object())
    with pytest.raises(ConfigError, match="the name 'ours' is taken among sinks"):
        registry.register("sinks", "ours", object())


def test_a_script_that_runs_again_replaces_its_own_implementations():
    def run():
        namespace = {"__name__": "web_server"}
        exec("class Sink: pass\ndef client(model): pass", namespace)
        return namespace["Sink"], namespace["client"]

    for sink, client in (run(), run()):
        registry.register("sinks", "again", sink)
        registry.register("clients", "again", client)
        assert registry.find("sinks", "again") is sink
        assert registry.find("clients", "again") is client


def test_two_lambdas_are_different_registrations():
    registry.register("sinks", "nameless", lambda context, options: 1)
    with pytest.raises(ConfigError, match="the name 'nameless' is taken"):
        registry.register("sinks", "nameless", lambda context, options: 2)


def test_an_unknown_kind_is_refused():
    with pytest.raises(ConfigError, match=r"expected engines or clients or .*, found 'sink'"):
        registry.register("sink", "mine", object())


def test_the_options_of_an_implementation_are_its_struct():
    class Sink:
        class Options(msgspec.Struct):
            path: str

    registry.register("sinks", "with", Sink)
    registry.register("sinks", "without", print)
    assert registry.options_of("sinks", "with") is Sink.Options
    assert registry.options_of("sinks", "without") is None


def test_an_unknown_name_is_refused_with_the_known_ones(built_in, install):
    install("toy-sinks", toy="toy_sinks:toy")
    assert registry.known_as("sinks", "tuy") is None
    with pytest.raises(ConfigError) as error:
        registry.find("sinks", "tuy")
    assert str(error.value) == "sinks: expected ours or toy, found 'tuy'; did you mean toy?"


def test_without_any_name_the_error_lists_none(monkeypatch):
    monkeypatch.setitem(registry.BUILT_IN, "sinks", {})
    with pytest.raises(ConfigError, match="sinks: expected none, as no plug-in is installed"):
        registry.find("sinks", "toy")


def test_a_plug_in_that_cannot_be_imported_is_named_with_its_distribution(install):
    install("toy-sinks", "import nowhere_at_all", toy="toy_sinks:toy")
    with pytest.raises(ConfigError) as error:
        registry.find("sinks", "toy")
    assert str(error.value) == (
        "the plug-in toy = toy_sinks:toy of toy-sinks 1.2 (entry point pipeline.sinks) cannot be "
        "loaded: ModuleNotFoundError: No module named 'nowhere_at_all'"
    )


def test_two_plug_ins_of_one_name_are_named_with_their_distributions(install):
    install("toy-sinks", toy="toy_sinks:toy")
    install("other", toy="other:toy")
    with pytest.raises(ConfigError, match="several plug-ins are called 'toy'") as error:
        registry.find("sinks", "toy")
    assert "of toy-sinks 1.2" in str(error.value)
    assert "of other 1.2" in str(error.value)


def test_a_plug_in_cannot_have_a_built_in_name(built_in, install):
    install("toy-sinks", ours="toy_sinks:toy")
    with pytest.raises(ConfigError, match=r"of toy-sinks 1.2 .* name of one that is built in"):
        registry.names("sinks")


# Options in config.yml ----------------------------------------------------------------------


class Toy:
    class Options(msgspec.Struct, frozen=True, kw_only=True):
        limit: Annotated[int, Meta(ge=1), "A key that has to be there."]
        wait_s: Annotated[float | None, Duration("ms"), "A key with a unit."] = None


@pytest.fixture
def toys() -> None:
    for kind in ("clients", "workers", "schedulers", "sinks", "filters", "frontends"):
        registry.register(kind, "toy", Toy)
    registry.register("filters", "plain", print)


def refusal(**keys: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        load_config(yml_dict={"rpc_port": 0, **keys})
    return str(caught.value)


@pytest.mark.parametrize(
    ("key", "field"),
    [
        ("workers", "worker_options"),
        ("batching", "scheduler_options"),
        ("client_type", "client_options"),
    ],
)
def test_options_of_an_ops_plug_in_are_keys_next_to_its_name(toys, key, field):
    config = load_config(
        yml_dict={"rpc_port": 0, "op": {"bow": {key: "Toy", "limit": 3, "wait": 500}}}
    )
    op = config.op["bow"]
    assert config.warnings == ()
    assert getattr(op, key) == "toy"
    assert getattr(op, field) == {"limit": 3, "wait_s": 0.5}


def test_a_key_is_the_option_of_one_only(toys):
    assert refusal(op={"bow": {"workers": "toy", "batching": "toy", "limit": 3}}).splitlines() == [
        "yml_dict: op.bow.workers: its option limit is something else here already",
        "yml_dict: op.bow.workers: its option wait is something else here already",
    ]


def test_options_of_an_unused_plug_in_are_unknown_keys(toys):
    config = load_config(yml_dict={"rpc_port": 0, "op": {"bow": {"limit": 3}}})
    assert config.warnings == ("yml_dict: op.bow.limit: unknown key, ignored",)


def test_options_are_checked_as_other_keys_are(toys):
    assert refusal(op={"bow": {"workers": "toy", "limit": 0}}) == (
        "yml_dict: op.bow.limit: expected int >= 1, found 0 (int)"
    )
    assert refusal(op={"bow": {"workers": "toy"}}) == (
        "yml_dict: op.bow.limit: expected int >= 1, found nothing"
    )


def test_an_error_lists_names_of_plug_ins_after_built_in_ones(toys):
    assert refusal(op={"bow": {"workers": "tay"}}) == (
        "yml_dict: op.bow.workers: expected thread or process or model or ray or toy, found 'tay' "
        "(str); did you mean toy?"
    )


def test_filters_are_named_in_their_order_each_with_its_options(toys):
    given = {"plain": None, "toy": {"limit": 1}}
    config = load_config(yml_dict={"rpc_port": 0, "filters": given})
    assert list(config.filters.items()) == [("plain", None), ("toy", Toy.Options(limit=1))]


@pytest.mark.parametrize("kind", ["filters", "sinks", "frontends"])
@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"toy": {"limit": 0}}, "yml_dict: {}.toy.limit: expected int >= 1, found 0 (int)"),
        ({"toy": None}, "yml_dict: {}.toy.limit: expected int >= 1, found nothing"),
        ({"toy": 1}, "yml_dict: {}.toy: expected a mapping (key: value), found 1 (int)"),
        ({1: {}}, "yml_dict: {}.1: expected a name (put it in quotes), found 1 (int)"),
        (["toy"], "yml_dict: {}: expected a mapping (key: value), found ['toy'] (list)"),
    ],
)
def test_an_invalid_value_of_named_plug_ins_is_refused(toys, kind, given, text):
    assert text.format(kind) in refusal(**{kind: given})


def test_an_unknown_name_is_refused_with_its_key(toys):
    assert refusal(sinks={"tay": {}}) == (
        f"yml_dict: sinks.tay: sinks: expected {' or '.join(registry.BUILT_IN['sinks'])} or toy, "
        "found 'tay'; did you mean toy?"
    )


class Unlike:
    class Options:
        pass


class Wordless:
    class Options(msgspec.Struct):
        limit: int


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ("json:Toy", "cannot be loaded from 'json:Toy': AttributeError: module 'json' has no"),
        ("nowhere_at_all:Toy", "from 'nowhere_at_all:Toy': ModuleNotFoundError: No module"),
        (Unlike, "expected a msgspec.Struct as the Options of 'odd', got <class"),
        (Wordless, "its option limit has no sentence: annotate it as limit: Annotated["),
    ],
)
def test_an_unusable_registration_is_refused_with_its_key(given, text):
    registry.register("sinks", "odd", given)
    error = refusal(sinks={"odd": {"limit": 1}})
    assert error.startswith("yml_dict: sinks.odd: ")
    assert text in error


def test_a_missing_option_has_the_line_of_its_section(toys, tmp_path):
    file = tmp_path / "config.yml"
    file.write_text("rpc_port: 0\nsinks:\n  toy: {}\n")
    with pytest.raises(ConfigError, match=r"config\.yml:3: sinks\.toy\.limit: expected int >= 1"):
        load_config(str(file))


def test_a_broken_plug_in_is_refused_with_its_key(install):
    install("toy-sinks", "import nowhere_at_all", toy="toy_sinks:toy")
    assert refusal(sinks={"toy": {}}).startswith(
        "yml_dict: sinks.toy: the plug-in toy = toy_sinks:toy of toy-sinks 1.2 (entry point"
    )


def test_an_unknown_option_is_a_warning(toys):
    config = load_config(yml_dict={"rpc_port": 0, "sinks": {"toy": {"limit": 1, "limitt": 2}}})
    assert config.warnings == (
        "yml_dict: sinks.toy.limitt: unknown key, ignored; did you mean limit?",
    )


# Built-in names -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "name"), [(kind, name) for kind, ours in registry.BUILT_IN.items() for name in ours]
)
def test_each_built_in_name_can_be_imported(kind: registry.Kind, name: str) -> None:
    assert registry.find(kind, name) is not None
