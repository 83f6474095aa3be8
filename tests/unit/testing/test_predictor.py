"""The fake model: its answers, and its memory of calls."""

from __future__ import annotations

import numpy as np
import pytest

from pipeline.errors import InputError, PredictorError
from pipeline.testing import FakePredictor
from pipeline.testing.predictor import as_predictor


def test_outputs_of_one_row_get_as_many_as_were_fed():
    model = FakePredictor({"prob": [[0.1, 0.9]], "all": [[1], [2]]})
    answer = model.predict({"x": np.zeros((2, 4))})
    assert answer["prob"].tolist() == [[0.1, 0.9], [0.1, 0.9]]
    assert answer["all"].tolist() == [[1], [2]]
    assert model.fetch_names == ("prob", "all")


def test_rows_are_counted_in_lists_of_text_and_default_to_one():
    model = FakePredictor({"y": [1]})
    assert model.predict([{"text": ["a", "b", "c"]}])["y"].tolist() == [1, 1, 1]
    assert model.predict({})["y"].tolist() == [1]
    assert model.predict({"x": np.zeros(5)}, batch=False)["y"].tolist() == [1]


def test_a_function_gets_the_feed():
    model = FakePredictor(lambda feed: {"y": feed["x"] * 2}, feed_names=["x"], fetch_names=["y"])
    assert model.predict({"x": np.array([1, 2])})["y"].tolist() == [2, 4]
    assert (model.feed_names, model.fetch_names) == (("x",), ("y",))


def test_a_list_is_an_answer_or_an_error_for_each_call():
    model = FakePredictor([{"y": [1]}, PredictorError("busy"), lambda feed: {"y": [len(feed)]}])
    assert model.predict({})["y"].tolist() == [1]
    with pytest.raises(PredictorError, match="busy"):
        model.predict({})
    assert model.predict({"a": 1, "b": 2})["y"].tolist() == [2]
    with pytest.raises(PredictorError, match="call 4 has no answer: there are 3"):
        model.predict({})
    assert len(model.calls) == 4


def test_only_fetched_outputs_are_returned_and_must_exist():
    model = FakePredictor({"a": [1], "b": [2]})
    assert list(model.predict({}, fetch=["b"])) == ["b"]
    with pytest.raises(InputError, match="no output is called c: there is a, b"):
        model.predict({}, fetch=["c"])


def test_no_outputs_by_name_are_an_error():
    with pytest.raises(PredictorError, match="expected outputs by name, a dict, found list"):
        FakePredictor(lambda feed: [1]).predict({})


def test_a_predictor_is_used_unchanged_and_other_values_are_wrapped():
    own = FakePredictor({})
    assert as_predictor(own) is own
    assert as_predictor({"predict": [1]}).predict({})["predict"].tolist() == [1]
