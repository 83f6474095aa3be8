"""Changes to the text of a config.yml: what stays, and what is there afterwards."""

from __future__ import annotations

import pytest
import yaml

from pipeline.config.yaml_edit import with_ops_changed

_CHANGES = {"model": {"concurrency": (4, "was 1"), "batch_size": (16, "was 1: cheaper")}}


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
def test_what_is_changed_is_there_and_comments_stay(text):
    changed = with_ops_changed(text, _CHANGES)
    expected = yaml.safe_load(text)
    ops = expected.setdefault("op", {})
    ops["model"] = {**ops.get("model", {}), "concurrency": 4, "batch_size": 16}
    assert yaml.safe_load(changed) == expected
    assert "# ours" in changed
    assert "was 1: cheaper" in changed


@pytest.mark.parametrize(
    "text", ["a: &x {concurrency: 1}\nop:\n  model: *x\n", "{op: {model: {}}}", "op:\n  model:\n"]
)
def test_what_cannot_be_edited_is_written_anew(text):
    changed = with_ops_changed(text, _CHANGES)
    assert yaml.safe_load(changed)["op"]["model"] == {"concurrency": 4, "batch_size": 16}
    assert yaml.safe_load(changed).get("a") == yaml.safe_load(text).get("a")
    assert "# " in changed
