"""Paddle models on a double of paddle.inference; test_local_paddle_real.py has the real one."""

from __future__ import annotations

import sys
import threading

import ml_dtypes
import numpy as np
import pytest
from doubles import side_by_side
from paddle_double import FakePaddle, FakePredictor, json_program, operator

from pipeline.errors import ClosedError, InitError, InputError, PredictorError
from pipeline.predictors.base import Device, DeviceType
from pipeline.predictors.paddle import PaddleModel
from pipeline.predictors.paddle.predictor import brief, load

CPU = Device(DeviceType.CPU)
PROTOTXT = """
feed_var { name: "x" alias_name: "image" is_lod_tensor: %s feed_type: 1 shape: 640 }
fetch_var { name: "y" alias_name: "score" fetch_type: 1 shape: 1 }
"""


@pytest.fixture
def path(tmp_path):
    write(tmp_path)
    return tmp_path / "a.json"


def write(folder, dims=(-1, 2), dtype="0.t_f32"):
    operators = [operator("data", "x", dtype, dims), operator("fetch", "y", dtype, dims)]
    (folder / "a.json").write_bytes(json_program(*operators))


def loaded(path, paddle=None, **keys):
    return load(PaddleModel(path, **keys), CPU, paddle or FakePaddle())


def rows(*values):
    return np.array(values, np.float32)


def test_it_is_called_as_scripts_of_the_predecessor_call_it(path):
    predictor = loaded(path)
    result = predictor.predict(
        feed=[{"x": rows([1, 2])}], fetch=["y"], batch=True, log_id=7, need_variant_tag=False
    )
    assert {name: y.tolist() for name, y in result.items()} == {"y": [[2, 4]]}
    assert predictor.predict({"x": rows(1, 2)}, batch=False)["y"].tolist() == [[2, 4]]


def test_the_predictor_declares_that_it_holds_the_gil(path):
    assert loaded(path).holds_gil


def test_aliases_are_read_from_the_prototxt_next_to_the_model(path):
    (path.parent / "serving_server_conf.prototxt").write_text(PROTOTXT % "false")
    predictor = loaded(path)
    assert (predictor.feed_names, predictor.fetch_names) == (("image",), ("score",))
    assert predictor.predict({"image": rows([1, 2])})["score"].tolist() == [[2, 4]]
    assert predictor.predict({"x": rows([1, 2])}, ["y"])["y"].tolist() == [[2, 4]]


def test_offsets_are_fed_and_fetched_and_do_not_persist(path):
    paddle = FakePaddle()
    predictor = loaded(path, paddle)
    result = predictor.predict({"x": rows([1, 2], [3, 4]), "x.lod": [0, 1, 2]})
    assert paddle.predictor.lods["x"] == [[0, 1, 2]]
    assert result["y.lod"].tolist() == [0, 1, 2]
    assert result["y.lod"].dtype == np.int32
    assert list(predictor.predict({"x": rows([1, 2])})) == ["y"]


def test_memory_of_a_run_is_cleared(path):
    paddle = FakePaddle()
    predictor = loaded(path, paddle)
    runs = paddle.predictor.cleared
    for count in (1, 2, 3):
        assert len(predictor.predict({"x": rows(*[[1, 2]] * count)})["y"]) == count
        assert paddle.predictor.cleared == runs + count


def test_the_warm_up_runs_at_the_start_if_the_shape_is_known(path):
    paddle = FakePaddle()
    loaded(path, paddle)
    assert paddle.predictor.values["x"].tolist() == [[0, 0]]


@pytest.mark.parametrize("dims", [(-1, -1), (-1, 3, -1)])
def test_without_a_known_shape_there_is_no_warm_up(tmp_path, dims):
    write(tmp_path, dims)
    paddle = FakePaddle()
    loaded(tmp_path / "a.json", paddle)
    assert paddle.predictor.values == {}


def test_sequences_have_no_warm_up(path):
    (path.parent / "serving_server_conf.prototxt").write_text(PROTOTXT % "true")
    paddle = FakePaddle()
    loaded(path, paddle)
    assert paddle.predictor.values == {}


def fail(predictor):
    raise RuntimeError("out of\nmemory [Hint: buy more] (at /paddle/paddle/phi/memory.cc:44)")


def test_a_failing_warm_up_is_a_warning(path, caplog):
    paddle = FakePaddle()
    paddle.predictor.watch = fail
    predictor = loaded(path, paddle)
    assert "warm-up with zeros: [a.json] the model failed: out of memory" in caplog.text
    paddle.predictor.watch = lambda predictor: None
    assert predictor.predict({"x": rows([1, 2])})["y"].tolist() == [[2, 4]]


def test_a_failure_is_one_short_line(path):
    paddle = FakePaddle()
    predictor = loaded(path, paddle)
    paddle.predictor.watch = fail
    with pytest.raises(PredictorError) as caught:
        predictor.predict({"x": rows([1, 2])})
    assert str(caught.value) == "[a.json] the model failed: out of memory [Hint: buy more]"
    assert not caught.value.retryable


def test_of_paddle_s_errors_the_summary_is_shown():
    text = "---\nC++ Traceback\n0 main()\n----\nError Message Summary:\n-----\nNotFound: x\n"
    assert brief(RuntimeError(text)) == "NotFound: x"
    assert brief(MemoryError()) == "MemoryError"
    assert len(brief(RuntimeError("x" * 5000))) < 410


def test_calls_that_overlap_run_on_clones_which_later_calls_use_again(path):
    meet = threading.Barrier(3)
    used = []

    def watch(predictor):
        used.append(predictor.number)
        meet.wait()

    paddle = FakePaddle()
    predictor = loaded(path, paddle)
    paddle.predictor.watch = watch

    def ask(n):
        return predictor.predict({"x": rows([n, n])})["y"].tolist()

    for _ in range(2):
        assert side_by_side(ask, 3) == [[[2 * n, 2 * n]] for n in range(3)]
    assert sorted(used) == [0, 0, 1, 1, 2, 2]


def test_calls_in_turn_run_on_one_predictor(path):
    used = []
    paddle = FakePaddle()
    predictor = loaded(path, paddle)
    paddle.predictor.watch = lambda predictor: used.append(predictor.number)
    for _ in range(3):
        predictor.predict({"x": rows([1, 2])})
    assert used == [0, 0, 0]


class NoClones(FakePredictor):
    def clone(self):
        raise RuntimeError("no memory")


def test_a_clone_that_cannot_be_made_fails_the_call_that_needs_it(path):
    started, finish = threading.Event(), threading.Event()

    def wait(predictor):
        started.set()
        assert finish.wait(60)

    paddle = FakePaddle()
    paddle.predictor = NoClones()
    predictor = loaded(path, paddle)
    paddle.predictor.watch = wait
    thread = threading.Thread(target=predictor.predict, args=({"x": rows([1, 2])},))
    thread.start()
    assert started.wait(60)
    with pytest.raises(PredictorError, match=r"cannot be cloned.*no memory"):
        predictor.predict({"x": rows([1, 2])})
    finish.set()
    thread.join()


def test_a_predictor_that_is_closed_during_a_call_finishes_the_call(path):
    paddle = FakePaddle()
    predictor = loaded(path, paddle)
    paddle.predictor.watch = lambda _: predictor.close()
    assert predictor.predict({"x": rows([1, 2])})["y"].tolist() == [[2, 4]]
    predictor.close()
    with pytest.raises(ClosedError, match=r"a\.json"):
        predictor.predict({"x": rows([1, 2])})


def test_a_wrong_feed_does_not_reach_paddle(path):
    paddle = FakePaddle()
    predictor = loaded(path, paddle)
    paddle.predictor.watch = fail
    for feed in (
        {"x": rows([1, 2, 3])},
        {"x": np.zeros((0, 2), np.float32), "x.lod": [0]},
        {"x": rows([1, 2]), "x.lod": [0, 7]},
        {"z": rows([1, 2])},
        {"x": np.array([[1j, 2j]])},
    ):
        with pytest.raises(InputError):
            predictor.predict(feed)


def test_arrays_without_rows_do_not_reach_paddle_unasked(path):
    paddle = FakePaddle()
    predictor = loaded(path, paddle)
    asked = loaded(path, paddle, takes_empty=True)
    nothing = np.zeros((0, 2), np.float32)
    paddle.predictor.watch = fail
    answer = predictor.predict({"x": nothing})["y"]
    assert (answer.shape, answer.dtype) == ((0, 2), np.float32)
    with pytest.raises(PredictorError, match="out of memory"):
        asked.predict({"x": nothing})


def test_an_exception_of_paddle_at_the_start_names_the_files(path):
    paddle = FakePaddle()
    paddle.inference.create_predictor = fail
    with pytest.raises(InitError, match=rf"cannot load {path} with a\.pdiparams: out of memory"):
        loaded(path, paddle)


def test_without_paddle_the_error_names_the_package(path, monkeypatch):
    monkeypatch.setitem(sys.modules, "paddle", None)
    with pytest.raises(InitError, match=r"pip install 'pipeline-serving\[paddle\]'"):
        load(PaddleModel(path), CPU)


def test_an_output_of_a_type_that_its_handle_mistakes_is_an_error(path):
    paddle = FakePaddle()
    predictor = loaded(path, paddle)

    def answer(run):
        run.values["x"] = run.values["x"].astype(ml_dtypes.bfloat16)

    paddle.predictor.watch = answer
    with pytest.raises(PredictorError, match="output 'y' came as BFLOAT16"):
        predictor.predict({"x": rows([1, 2])})
