"""TraceFile: whole arrays after each write, and what a disk refuses."""

from __future__ import annotations

import json

from pipeline.observe.traces.traces import TraceFile


def test_the_file_is_an_array_after_each_write(tmp_path):
    path = tmp_path / "traces"
    path.write_text("of another run")
    file = TraceFile(str(path))
    for count in (1, 2, 3):
        file.append(b'{"id":%d}' % count)
        assert [item["id"] for item in json.loads(path.read_bytes())] == [1, 2, 3][:count]
    file.write_next(b"1")
    file.write_next(b"2,3")
    file.close()
    assert json.loads((tmp_path / "traces.0").read_bytes()) == [1]
    assert json.loads((tmp_path / "traces.1").read_bytes()) == [2, 3]


def test_an_unwritable_file_is_logged_once(tmp_path, caplog):
    file = TraceFile(str(tmp_path / "no" / "traces"))
    file.append(b"1")
    file.append(b"2")
    file.close()
    (reported,) = [record.getMessage() for record in caplog.records]
    assert reported.endswith("No such file or directory")
