"""Controls of sequences by the doors of v2: hidden from callers, fed to a model with fillers."""

from __future__ import annotations

import pytest
from doubles import http, server_for
from model_files import save_sequence_model

from pipeline import Op, RequestOp

PAIR = {"int32_false_true": [0, 1]}
CONTROLS = [
    {"name": "START", "control": [{"kind": "CONTROL_SEQUENCE_START", **PAIR}]},
    {"name": "READY", "kind": "ready", **PAIR},
    {"name": "CORRID", "kind": "corrid", "data_type": "INT64"},
]
STATE = {"input_name": "TOTAL_IN", "output_name": "TOTAL_OUT", "data_type": "INT32", "dims": [1]}


@pytest.fixture(scope="module", params=["thread", "process"])
def server(request, tmp_path_factory):
    folder = save_sequence_model(tmp_path_factory.mktemp("model") / "accumulate")
    keys = {
        "batch_size": 4,
        "workers": request.param,
        "local_service_conf": {"model_config": str(folder)},
        "sequence": {"strategy": "direct", "controls": CONTROLS, "state": [STATE]},
    }
    with server_for(Op("acc", RequestOp()), op={"acc": keys}) as running:
        yield running


def infer(server, words, value, **more):
    id, *flags = words.split()
    parameters = {"sequence_id": int(id) if id.isdigit() else id}
    parameters |= {f"sequence_{flag}": True for flag in flags}
    data = {"INPUT": value, **more}
    body = {
        "parameters": parameters,
        "inputs": [
            {"name": name, "datatype": "INT32", "shape": [1, 1], "data": [each]}
            for name, each in data.items()
        ],
    }
    status, _, answer = http(server, "POST", "/v2/models/acc/infer", body)
    if status != 200:
        return status, answer["error"]
    return {item["name"]: item["data"][0] for item in answer["outputs"]}


def test_a_model_has_the_row_of_its_slot_and_zeros_between(server):
    for slot in range(4):
        reported = infer(server, f"{slot + 1} start", 10 * (slot + 1))
        assert reported == {
            "OUTPUT": 10 * (slot + 1) + 1,
            "WIDTH": slot + 1,
            "ID": slot + 1,
            "TOTAL": 10 * (slot + 1),
        }
    for slot, width in ((3, 4), (0, 1), (2, 3)):
        reported = infer(server, f"{slot + 1} end", 5)
        total = 10 * (slot + 1) + 5
        assert reported == {"OUTPUT": 5, "WIDTH": width, "ID": slot + 1, "TOTAL": total}
    assert infer(server, "2 end", 1)["TOTAL"] == 21


def test_fillers_do_not_count_as_inferences(server):
    before = statistics(server)
    infer(server, "8 start", 1)
    infer(server, "9 start", 1)
    infer(server, "9 end", 1)
    infer(server, "8 end", 1)
    after = statistics(server)
    names = ("inference_count", "execution_count")
    assert [after[name] - before[name] for name in names] == [4, 4]
    assert {size: count - sizes(before).get(size, 0) for size, count in sizes(after).items()} == {
        **dict.fromkeys(sizes(before), 0),
        1: 2,
        2: 2,
    }


def sizes(statistics):
    batches = statistics["batch_stats"]
    return {batch["batch_size"]: batch["compute_infer"]["count"] for batch in batches}


def statistics(server):
    _, _, answer = http(server, "GET", "/v2/models/acc/stats")
    return answer["model_stats"][0]


def test_callers_do_not_see_controls_and_do_not_send_them(server):
    _, _, metadata = http(server, "GET", "/v2/models/acc")
    assert [item["name"] for item in metadata["inputs"]] == ["INPUT"]
    status, text = infer(server, "7 start", 1, START=1)
    assert (status, "expected 1 inputs but got 2 inputs for model 'acc'" in text) == (400, True)


def test_an_id_of_another_kind_than_the_controls_is_refused(server):
    text = "sequence batching control 'CORRID' data-type is 'BYTES', but model 'acc' expects"
    status, reported = infer(server, "a start", 1)
    assert (status, f"{text} 'INT64'" in reported) == (400, True)


def test_the_configuration_has_them(server):
    _, _, config = http(server, "GET", "/v2/models/acc/config")
    batching = config["sequence_batching"]
    assert [item["name"] for item in batching["control_input"]] == ["START", "READY", "CORRID"]
    assert [item["name"] for item in config["input"]] == ["INPUT"]
    assert "dynamic_batching" not in config
