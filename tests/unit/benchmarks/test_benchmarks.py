"""The benchmarks' own arithmetic: targets, verdicts, what an answer's size and a family say."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks import NotMeasuredError, services
from benchmarks.ask import V2Question
from benchmarks.catalog import (
    GROUPS,
    INSTRUCTIONS,
    SETS,
    TARGETS,
    Target,
    array_question,
    bytes_question,
)
from benchmarks.load import may_be_whole
from benchmarks.measure import Measurement, Plan, Results
from benchmarks.report import markdown
from pipeline.proto import codec
from pipeline.proto import inference_v2_pb2 as v2
from pipeline.proto import pipeline_service_pb2 as pb

MIB = 2**20
PLAN = Plan(clients=(1,), seconds=1.0, repeats=1)
CASES = [case for cases in GROUPS.values() for case in cases]


def measured(**p50_ms: float) -> Results:
    """Results of one round with one client, in which a request took `p50_ms` in each case."""
    rounds = {
        (name, 1): [
            Measurement(
                requests=round(1000 / ms),
                seconds=1.0,
                p50_ms=ms,
                p99_ms=ms,
                server_cpu_s=0.5,
                rss_bytes=MIB,
            )
        ]
        for name, ms in p50_ms.items()
    }
    return Results(rounds)


def verdict(results: Results, target: Target) -> list[str]:
    """The cells of a target's row."""
    last = markdown(results, PLAN, [target]).splitlines()[-1]
    return [cell.strip() for cell in last.strip("|").split("|")]


def test_case_names_are_unique_in_all_groups() -> None:
    names = [case.name for case in CASES]

    assert len(names) == len(set(names))


def test_a_group_is_in_one_set() -> None:
    assert sorted(name for names in SETS.values() for name in names) == sorted(GROUPS)


def test_every_case_is_a_service() -> None:
    folder = Path(services.__file__).parent

    assert all((folder / f"{case.command[0]}.py").is_file() for case in CASES)


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: f"{target.case} {target.base}")
def test_a_target_compares_cases_of_one_group(target: Target) -> None:
    names = {target.case, *(name for name in (target.base, target.ceiling) if type(name) is str)}

    assert any(names <= {case.name for case in cases} for cases in GROUPS.values())
    if target.figure == INSTRUCTIONS:
        assert all(case.is_counted for case in CASES if case.name in names)
    else:
        assert hasattr(Measurement, target.figure) or target.figure in Measurement.__annotations__
    assert (target.at_least is None) != (target.at_most is None)


def test_a_ratio_is_judged() -> None:
    target = Target("ours", 1, "per_s", "theirs", at_least=0.5)

    assert verdict(measured(ours=4.0, theirs=2.0), target)[3::2] == ["0.50", "reached"]
    assert verdict(measured(ours=5.0, theirs=2.0), target)[3::2] == ["0.40", "**missed**"]


def test_a_hop_costs_the_difference_by_the_number_of_hops() -> None:
    target = Target("five", 1, "p50_us", "one", at_most=100.0, hops=4)

    assert verdict(measured(five=1.0, one=0.5), target)[3] == "125.00"
    assert verdict(measured(five=1.0, one=0.5), target)[-1] == "**missed**"
    assert verdict(measured(five=0.9, one=0.5), target)[-1] == "reached"


def test_instructions_are_judged_where_they_were_counted() -> None:
    target = Target("ours", 1, INSTRUCTIONS, "theirs", at_most=1.0)
    results = measured(ours=1.0, theirs=1.0)
    results.instructions.update({"ours": 90_000.0, "theirs": 100_000.0})

    assert verdict(results, target)[0] == "ours, instructions"
    assert verdict(results, target)[3::2] == ["0.90", "reached"]
    results.instructions["theirs"] = "no valgrind"
    assert "| target |" not in markdown(results, PLAN, [target])


def test_a_target_that_the_bare_case_misses_is_out_of_reach() -> None:
    target = Target("ours", 1, "per_s", 100.0, at_least=10.0, ceiling="bare")

    assert verdict(measured(ours=2.0, bare=1.25), target)[-1] == "out of reach: bare has 8.00"
    assert verdict(measured(ours=2.0, bare=1.0), target)[-1] == "**missed**"
    assert verdict(measured(ours=2.0), target)[-1] == "**missed**"


@pytest.mark.parametrize(
    ("data_bytes", "size", "expected"),
    [
        (10 * 100, 100, True),
        (10 * 100 + 2 * 100, 100, True),  # two more arrived when the time was over
        (10 * 100 - 60, 100, False),  # one of them was shorter
        (10 * 100 + 60, 100, False),  # a small answer is not cut
        (10 * MIB + 60, MIB, True),  # a large one is
        (10 * MIB + 4 * MIB, MIB, False),  # more than there are clients
        (9 * MIB + 60, MIB, False),
    ],
)
def test_answers_are_checked_by_their_size(data_bytes: int, size: int, expected: bool) -> None:
    assert may_be_whole(10, data_bytes, clients=3, size=size) is expected


def test_no_answer_is_not_right() -> None:
    assert not may_be_whole(0, 0, clients=3, size=100)


def test_a_question_of_bytes_is_sent_as_a_tensor_and_checks_its_answer() -> None:
    question = bytes_question(b"\0abc\0")

    tensors = codec.decode_tensors(pb.Request.FromString(question.as_message()).tensors)

    assert question.is_right(tensors)
    assert not question.is_right({"x": b"\0abc"})


def test_a_question_of_an_array_is_sent_as_a_tensor_and_checks_its_answer() -> None:
    question = array_question(np.arange(6, dtype=np.float32))

    tensors = codec.decode_tensors(pb.Request.FromString(question.as_message()).tensors)

    assert question.is_right(tensors)
    assert not question.is_right({"x": tensors["x"].astype(np.float64)})
    assert not question.is_right({"x": tensors["x"] + 1})


def test_a_question_of_the_v2_protocol_checks_its_answer() -> None:
    array = np.arange(16, dtype=np.float32)
    question = V2Question("x", array, lambda result: np.array_equal(result["x"], array), model="m")
    size = int(question.headers["Inference-Header-Content-Length"])
    tensor = v2.ModelInferResponse.InferOutputTensor(name="x", datatype="FP32", shape=[16])
    message = v2.ModelInferResponse(outputs=[tensor], raw_output_contents=[array.tobytes()])
    head = b'{"outputs":[{"name":"x","datatype":"FP32","shape":[16]}]}'
    headers = {"Inference-Header-Content-Length": str(len(head))}

    assert question.as_body()[size:] == array.tobytes()
    assert v2.ModelInferRequest.FromString(question.as_message()).model_name == "m"
    question.check_message(message.SerializeToString())
    question.check_body(head + array.tobytes(), headers)
    with pytest.raises(NotMeasuredError):
        question.check_body(head + (array + 1).tobytes(), headers)
    with pytest.raises(NotMeasuredError):
        question.check_body(b'{"error":"no"}', {})
