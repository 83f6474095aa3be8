"""The cargo for a zygote that is a fresh interpreter."""

from __future__ import annotations

import functools
import importlib
import os
import sys
import types

import dill
import msgspec
import numpy as np
import pytest

from pipeline.workers.zygote import spawn as zygote_spawn
from pipeline.workers.zygote.spawn import ParentState


def main(*args):
    """A child's main that the test never runs."""


def shipped(*entry_points):
    fd = zygote_spawn.pack(entry_points)
    try:
        return msgspec.msgpack.decode(os.pread(fd, 1 << 20, 0), type=ParentState)
    finally:
        os.close(fd)


@pytest.fixture
def module(tmp_path, monkeypatch):
    (tmp_path / "holds_a_lock.py").write_text("import threading\nlock = threading.Lock()\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("holds_a_lock")
    del sys.modules["holds_a_lock"]


def test_a_module_is_sent_by_its_name(module):
    cargo = shipped(functools.partial(main, module))
    ((unpacked,), _) = dill.loads(cargo.entry_points)
    assert unpacked.args[0] is module


def prepare():
    """What an import hook does in a fresh interpreter."""


class Hook:
    """An import hook that fresh interpreters also need."""

    prepare_spawned = staticmethod(prepare)

    def find_spec(self, *args):
        return None


def test_a_class_is_placed_under_the_name_of_its_variable(monkeypatch):
    script = types.ModuleType("aliasing_script")
    code = "class Text: kind = 1\nPlain = Text\nclass Text(Plain): kind = 2\n"
    exec(code, vars(script))
    classes = zygote_spawn.classes_of(script)
    monkeypatch.setitem(sys.modules, "aliasing_script", types.ModuleType("aliasing_script"))
    zygote_spawn.place_classes(classes)
    placed = sys.modules["aliasing_script"]
    assert (placed.Plain.kind, placed.Text.kind) == (1, 2)


def test_import_hooks_are_prepared_in_the_fresh_interpreter(monkeypatch):
    own = [hook for hook in sys.meta_path if not hasattr(hook, "prepare_spawned")]
    monkeypatch.setattr(sys, "meta_path", own)  # without the hooks that other tests left
    *hooks, _ = dill.loads(shipped(main).preparations)
    assert hooks == []
    monkeypatch.setattr(sys, "meta_path", [Hook(), *sys.meta_path])
    *hooks, _ = dill.loads(shipped(main).preparations)
    assert hooks == [prepare]


def test_numpys_print_options_equal_those_of_the_starting_process():
    with np.printoptions(threshold=17):
        *_, options = dill.loads(shipped(main).preparations)
    with np.printoptions():
        options()
        assert np.get_printoptions()["threshold"] == 17
