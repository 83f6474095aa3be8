"""The list of replicas that the edge's gateway reads."""

from __future__ import annotations

from pipeline.cluster.edge import write_list


def test_the_list_has_a_line_for_each_replica(tmp_path):
    path = tmp_path / "backends"
    write_list(path, ["10.0.0.1:1/2", "10.0.0.2:1/2"])
    assert path.read_text() == "10.0.0.1:1/2\n10.0.0.2:1/2\n"
    write_list(path, [])
    assert path.read_text() == "[]\n"  # the gateway does not start with an empty file
