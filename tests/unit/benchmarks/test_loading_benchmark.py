"""`benchmarks.loading`: what is written, and what the periods come to."""

from __future__ import annotations

import onnx

from benchmarks.loading import Period, large_model, row_of, write_repository


def test_a_row_has_the_medians_of_the_rounds_and_their_ratio():
    def periods(without, beside):
        return Period([without] * 10, 0), Period([beside] * 10, 2)

    row = row_of("onnx", [periods(1.0, 3.0), periods(2.0, 5.0), periods(9.0, 4.0)])
    assert row == ["onnx", "2.00", "4.00", "2.00", "4.00", "2.00", "6"]


def test_the_models_that_are_written_are_whole(tmp_path):
    write_repository(tmp_path, layers=1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["neighbour", "onnx", "python"]
    onnx.checker.check_model(large_model(2, 8))
