"""Changes to the text of a config.yml: what stays, and what is there afterwards."""

from __future__ import annotations

import pytest
import yaml

from pipeline.config.yaml_edit import OpChange, with_ops_changed

_CHANGES = {"model": OpChange({"concurrency": 4, "batch_size": 16}, "was 1 and 1")}


@pytest.mark.parametrize(
    "text",
    [
        "http_port: 1  # ours\nop:\n  words: {x: 2}\n  model:\n    concurrency: 1   # x\n",
        "http_port: 1  # ours\nop:\n  model: {concurrency: 1}\n",
        "http_port: 1  # ours\nop:\n  model: {}\n",
        "http_port: 1  # ours\nop:\n    words:\n        batch_size: 2\n",
        "http_port: 1  # ours\n",
    ],
)
def test_values_change_and_comments_stay(text):
    edited = with_ops_changed(text, _CHANGES)
    before, after = yaml.safe_load(text), yaml.safe_load(edited)
    expected = {**before.get("op", {}), "model": {"concurrency": 4, "batch_size": 16}}
    assert after == {**before, "op": expected}
    assert "# ours" in edited
    assert edited.count("# was 1 and 1\n") == 1


@pytest.mark.parametrize("text", ["", "op:\n", "a: &a {op: 1}\nop: {x: *a}\n", "op:\n  model:\n"])
def test_a_text_that_cannot_be_edited_is_rewritten(text):
    edited = with_ops_changed(text, _CHANGES)
    assert yaml.safe_load(edited)["op"]["model"] == {"concurrency": 4, "batch_size": 16}
    assert "was 1 and 1" in edited


def test_several_ops_are_changed_in_place():
    text = "op:\n  a: {batch_size: 2}\n  # the slow one\n  b:\n    batch_size: 1\n"
    changes = {name: OpChange({"batch_size": 8}, f"{name} grew") for name in ("b", "a", "c")}
    assert with_ops_changed(text, changes) == (
        "op:\n  # c grew\n  c:\n    batch_size: 8\n  # a grew\n  a: {batch_size: 8}\n"
        "  # the slow one\n  # b grew\n  b:\n    batch_size: 8\n"
    )
