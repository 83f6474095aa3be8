"""Ensembles: their steps ask models, of what is there; tensors, errors, parts and times."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import AsyncIterator
from typing import Any

import pytest
from doubles import settle, virtual
from ensembling import Parts, Shelf, config_of, ensemble_of

from pipeline.data import RequestInfo
from pipeline.errors import OverloadedError, PipelineError, ProductError
from pipeline.repository.ensembles import is_decoupled

ONE = {"x": [2]}


@contextlib.asynccontextmanager
async def shelf(**settings: Any) -> AsyncIterator[Shelf]:
    result = Shelf(**settings)
    try:
        yield result
    finally:
        await result.close()


def plus(amount):
    return lambda x: {"y": x + amount}


async def chain(there: Shelf, most: int = 0, **service_s: float | None) -> None:
    """Three models in a row: `e` is x + 1 + 10 + 100."""
    for name, amount in (("a", 1), ("b", 10), ("c", 100)):
        config = config_of(name, ONE, {"y": [2]})
        await there.add(config, plus(amount), service_s.get(name, 0.0))
    await there.add_ensemble(
        ensemble_of(
            "e",
            {"in": [2]},
            {"out": [2]},
            ("a", {"x": "in"}, {"y": "p"}),
            ("b", {"x": "p"}, {"y": "q"}),
            ("c", {"x": "q"}, {"y": "out"}),
            most=most,
        )
    )


@virtual
async def test_a_chain_of_models_runs_step_by_step():
    async with shelf() as there:
        await chain(there)
        assert await there.answer("e", **{"in": [1, 2]}) == {"out": [112, 113]}
        assert [op.seen[0]["x"].tolist() for op in map(there.ops.get, "abc")] == [
            [1, 2],
            [2, 3],
            [12, 13],
        ]


@virtual
async def test_the_times_of_the_models_leave_no_gap():
    async with shelf(clock_ns=itertools.count(1).__next__) as there:
        await chain(there)
        for _ in range(2):  # the first one finds out how the steps take requests
            await there.answer("e", **{"in": [1, 2]})
        for journal in there.journals.values():
            journal.flush()
        spans = ([row for row in there.spans if row["model"] == name][-1] for name in "abc")
        ends = [there.requests[name][-1]["end_ns"] for name in "abc"]
        whole = there.requests["e"][-1]
        # The clock ticks at each look, so equal times are one look.
        assert [row["ready_ns"] for row in spans] == [whole["admitted_ns"], *ends[:2]]
        assert whole["end_ns"] == ends[2]


async def diamond(there: Shelf, **service_s: float | None) -> None:
    """`a` feeds `b` and `c`, whose answers are outputs of `e`, and `d` has that of `b` to join."""
    for name, amount in (("a", 1), ("b", 10), ("c", 100)):
        await there.add(config_of(name, ONE, {"y": [2]}), plus(amount), service_s.get(name, 0.0))
    await there.add(
        config_of("d", {"left": [2], "right": [2]}, {"y": [2]}),
        lambda left, right: {"y": left + right},
    )
    await there.add_ensemble(
        ensemble_of(
            "e",
            {"in": [2]},
            {"sum": [2], "c": [2]},
            ("d", {"left": "q", "right": "in"}, {"y": "sum"}),  # in any order
            ("a", {"x": "in"}, {"y": "p"}),
            ("b", {"x": "p"}, {"y": "q"}),
            ("c", {"x": "p"}, {"y": "c"}),
        )
    )


@virtual
async def test_independent_steps_run_in_parallel():
    async with shelf() as there:
        await diamond(there, b=None, c=None)
        task = there.ask("e", **{"in": [1, 2]})
        await settle()
        assert (len(there.pools["b"].batches), len(there.pools["c"].batches)) == (1, 1)
        there.pools["c"].release()
        await settle()
        assert not task.done()
        there.pools["b"].release()
        data = await task
        assert {key: value.tolist() for key, value in data.payload.items()} == {
            "sum": [13, 15],
            "c": [102, 103],
        }


@virtual
async def test_a_step_without_requested_outputs_does_not_run():
    async with shelf() as there:
        await diamond(there)
        answer = await there.answer("e", RequestInfo(outputs=("c",)), **{"in": [1, 2]})
        assert answer["c"] == [102, 103]
        assert {name: len(there.ops[name].seen) for name in "abcd"} == {
            "a": 1,
            "b": 0,
            "c": 1,
            "d": 0,
        }
        assert "sum" not in answer


@virtual
async def test_a_model_gets_only_its_mapped_outputs_requested():
    async with shelf() as there:
        config = config_of("a", ONE, {"y": [2], "z": [2]})
        op = await there.add(config, lambda x: {"y": x, "z": x})
        await there.add_ensemble(
            ensemble_of("e", {"in": [2]}, {"out": [2]}, ("a", {"x": "in"}, {"z": "out"}))
        )
        assert await there.answer("e", **{"in": [1, 2]}) == {"out": [1, 2]}
        assert op.told[0].outputs == ("z",)


@virtual
async def test_each_model_receives_the_request_info():
    info = RequestInfo(
        id="7",
        parameters={"mood": "good", "timeout": 5},
        headers={"x-a": "b"},
        sequence_id="s",
        sequence_start=True,
        sequence_end=False,
        priority=3,
    )
    async with shelf() as there:
        await chain(there)
        await there.answer("e", info, **{"in": [1, 2]})
        for op in map(there.ops.get, "abc"):
            (reported,) = op.told
            names = ("id", "parameters", "headers", "sequence_id", "sequence_start", "priority")
            assert all(getattr(reported, name) == getattr(info, name) for name in names)


# Outputs that are not there ----------------------------------------------------------------------


@virtual
async def test_an_omitted_output_is_a_missing_input_of_the_next_step(caplog):
    async with shelf() as there:
        caplog.set_level("DEBUG")
        config = config_of("a", ONE, {"y": [2], "z": [2]})
        await there.add(config, lambda x: {"y": x} if x[0] < 5 else {"y": x, "z": x * 2})
        await there.add(
            config_of("b", {"x": [2], "optional": [2]}, {"y": [2]}),
            lambda x, optional=0: {"y": x + optional},
        )
        await there.add_ensemble(
            ensemble_of(
                "e",
                {"in": [2]},
                {"out": [2], "z": [2]},
                ("a", {"x": "in"}, {"y": "p", "z": "z"}),
                ("b", {"x": "p", "optional": "z"}, {"y": "out"}),
            )
        )
        assert await there.answer("e", **{"in": [5, 6]}) == {"out": [15, 18], "z": [10, 12]}
        assert "did not output" not in caplog.text
        assert await there.answer("e", **{"in": [1, 2]}) == {"out": [1, 2]}
        assert "Composing models did not output tensor z" in caplog.text


@virtual
async def test_an_optional_input_of_the_ensemble_may_be_missing():
    async with shelf() as there:
        config = config_of("a", {"x": [2], "optional": [2]}, {"y": [2]})
        op = await there.add(config, lambda x, optional=0: {"y": x + optional})
        await there.add_ensemble(
            ensemble_of(
                "e",
                {"in": [2], "optional_in": [2]},
                {"out": [2]},
                ("a", {"x": "in", "optional": "optional_in"}, {"y": "out"}),
            )
        )
        assert await there.answer("e", **{"in": [1, 2]}) == {"out": [1, 2]}
        assert list(op.seen[0]) == ["x"]


# The batch ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("batch", "of_model", "sent", "fed", "answered"),
    [
        (4, 4, [[1, 2], [3, 4]], [2, 2], [2, 2]),
        (4, 0, [[1, 2]], [2], [1, 2]),  # taken, and added
        (0, 4, [1, 2], [1, 2], [2]),  # added, and taken
    ],
)
@virtual
async def test_the_batch_dimension_is_added_and_removed(batch, of_model, sent, fed, answered):
    async with shelf() as there:
        config = config_of("a", ONE, {"y": [2]}, of_model)
        op = await there.add(config, plus(1), batch_size=max(1, of_model))
        await there.add_ensemble(
            ensemble_of(
                "e", {"in": [2]}, {"out": [2]}, ("a", {"x": "in"}, {"y": "out"}), batch=batch
            )
        )
        data = await there.ask("e", **{"in": sent})
        assert op.seen[0]["x"].shape == tuple(fed)
        assert data.payload["out"].shape == tuple(answered)


@virtual
async def test_a_model_with_the_batch_as_a_dimension_gets_all_rows():
    async with shelf() as there:
        op = await there.add(config_of("a", {"x": [-1, 2]}, {"y": [-1, 2]}), plus(1))
        await there.add_ensemble(
            ensemble_of("e", {"in": [2]}, {"out": [2]}, ("a", {"x": "in"}, {"y": "out"}), batch=4)
        )
        answer = await there.answer("e", **{"in": [[1, 2], [3, 4]]})
        assert (op.seen[0]["x"].shape, answer["out"]) == ((2, 2), [[2, 3], [4, 5]])


# Errors ------------------------------------------------------------------------------------------


@virtual
async def test_an_error_names_its_ensemble():
    async with shelf() as there:
        await chain(there)

        def refuse(x):
            raise ProductError(55, "no face")

        there.ops["b"].calls.append(refuse)
        await there.add_ensemble(
            ensemble_of("outer", {"in": [2]}, {"out": [2]}, ("e", {"in": "in"}, {"out": "out"}))
        )
        error = await there.error("e", **{"in": [1, 2]})
        assert (type(error), error.code) == (ProductError, 55)
        assert str(error).startswith("in ensemble 'e', ")
        assert str(error).endswith("no face")
        error = await there.error("outer", **{"in": [1, 2]})
        assert str(error).startswith("in ensemble 'outer', in ensemble 'e', ")
        assert there.ops["c"].seen == []


@virtual
async def test_a_missing_or_refusing_model_fails_the_ensemble_at_once():
    async with shelf() as there:
        await chain(there)
        config = there.configs.pop("b")
        error = await there.error("e", **{"in": [1, 2]})
        assert str(error) == "in ensemble 'e', Request for unknown model: 'b' is not found"
        there.configs["b"] = config
        for name, refused in (("b", OverloadedError("full", 7)), ("a", PipelineError("odd"))):
            engine = there.engines[name]
            engine.begin = lambda *asked, refused=refused: (_ for _ in ()).throw(refused)
            error = await there.error("e", **{"in": [1, 2]})
            assert (type(error), str(error)) == (type(refused), f"in ensemble 'e', {refused}")
            if name == "b":
                assert error.retry_after_s == 7
            del engine.begin


@virtual
async def test_the_other_branch_is_finished_when_one_fails():
    async with shelf() as there:
        await diamond(there, c=None)
        there.ops["b"].calls.append(lambda x: 1 / 0)
        task = there.ask("e", **{"in": [1, 2]})
        await settle()
        there.pools["c"].release()
        data = await task
        assert str(data.error).startswith("in ensemble 'e', ")


# Callers that left -------------------------------------------------------------------------------


@virtual
async def test_a_cancelled_request_is_dropped_at_the_running_model():
    async with shelf() as there:
        await chain(there, b=None)
        task = there.ask("e", **{"in": [1, 2]})
        await settle()
        assert there.engines["b"].inside == 1
        task.cancel()
        assert (there.engines["b"].inside, there.engines["e"].inside) == (0, 0)
        there.pools["b"].release()
        await settle()
        assert there.ops["c"].seen == []
        there.pools["b"].service_s = 0.0
        assert await there.answer("e", **{"in": [1, 2]}) == {"out": [112, 113]}


# How many at once --------------------------------------------------------------------------------


@virtual
async def test_a_step_has_no_more_requests_than_it_may():
    async with shelf() as there:
        await chain(there, most=2, b=None)
        tasks = [there.ask("e", **{"in": [number, 0]}) for number in range(5)]
        await settle()
        assert there.engines["b"].inside == 2
        tasks[2].cancel()  # waits for its turn
        for _ in range(4):
            there.pools["b"].release()
            await settle()
            assert there.engines["b"].inside <= 2
        left = [await each for number, each in enumerate(tasks) if number != 2]
        assert [item.payload["out"].tolist()[0] for item in left] == [111, 112, 114, 115]


@virtual
async def test_requests_that_wait_for_a_missing_model_all_get_an_error():
    async with shelf() as there:
        await chain(there, most=1, a=None)
        tasks = [there.ask("e", **{"in": [0, 0]}) for _ in range(200)]
        await settle()
        del there.configs["a"]
        there.pools["a"].release()
        results = [await task for task in tasks]
        assert sum(result.error is not None for result in results) == 199


# Times -------------------------------------------------------------------------------------------


@virtual
async def test_the_times_of_an_ensemble_are_the_sums_of_its_models():
    async with shelf() as there:
        await chain(there, a=0.001, b=0.002, c=0.004)
        await there.answer("e", **{"in": [1, 2]})
        for journal in there.journals.values():
            journal.flush()
        sums = {name: there.requests[name][0]["infer_ns"] for name in "abce"}
        assert sums["e"] == sums["a"] + sums["b"] + sums["c"]
        (request,) = there.requests["e"]
        assert request["end_ns"] - request["start_ns"] == 7_000_000


# Parts -------------------------------------------------------------------------------------------


def count(x):
    for number in range(int(x[0])):
        yield {"y": x * 0 + number}


async def parts(there: Shelf, most: int = 0, **service_s: float | None) -> None:
    """Add `a`, which makes as many parts as a request asks for, and `b`, which reads each."""
    await there.add(config_of("a", ONE, {"y": [2]}, parts=True), count)
    await there.add(config_of("b", ONE, {"y": [2]}), plus(10), service_s.get("b", 0.0))
    await there.add_ensemble(
        ensemble_of(
            "e",
            {"in": [2]},
            {"out": [2]},
            ("a", {"x": "in"}, {"y": "p"}),
            ("b", {"x": "p"}, {"y": "out"}),
            most=most,
        )
    )


@pytest.mark.parametrize("number", [0, 1, 3, 100])
@virtual
async def test_each_part_continues_through_the_remaining_steps(number):
    async with shelf() as there:
        await parts(there)
        sink = there.ask("e", sink=Parts(), **{"in": [number, 0]})
        await settle(5000)
        assert [part.payload["out"].tolist()[0] for part in sink.parts] == [
            10 + index for index in range(number)
        ]
        assert sink.ends == [None]


@virtual
async def test_a_slow_client_pauses_the_model_that_streams():
    async with shelf() as there:
        made = []

        def count(x):
            for number in range(1000):
                made.append(number)
                yield {"y": x + number}

        await parts(there)
        there.ops["a"].calls.append(count)
        sink = there.ask("e", sink=Parts(holds=True), **{"in": [5, 0]})
        await settle(3000)
        assert 16 <= len(made) <= 64
        sink.holds = False
        sink.request.took_part(len(sink.parts))
        await settle(40000)
        assert (len(sink.parts), sink.ends) == (1000, [None])


@virtual
async def test_a_part_that_fails_ends_the_stream_with_its_error():
    async with shelf() as there:
        await parts(there)
        there.ops["b"].calls.append(lambda x: {"y": x} if x[0] < 2 else 1 / 0)
        sink = there.ask("e", sink=Parts(), **{"in": [5, 0]})
        await settle(3000)
        assert len(sink.parts) == 2
        assert str(sink.ends[0].error).startswith("in ensemble 'e', ")
        assert there.engines["a"].inside == 0


@virtual
async def test_a_model_that_fails_between_its_parts_ends_the_stream():
    async with shelf() as there:
        await parts(there)

        def fail(x):
            yield {"y": x}
            raise ProductError(56, "no more")

        there.ops["a"].calls.append(fail)
        sink = there.ask("e", sink=Parts(), **{"in": [5, 0]})
        await settle(3000)
        assert len(sink.parts) == 1
        assert (sink.ends[0].error.code, str(sink.ends[0].error)[:15]) == (56, "in ensemble 'e'")


@virtual
async def test_a_cancelled_stream_ends_at_the_model():
    async with shelf() as there:
        await parts(there)
        sink = there.ask("e", sink=Parts(holds=True), **{"in": [1000, 0]})
        await settle(3000)
        assert there.engines["a"].inside == 1
        sink.request.cancel()
        await settle()
        assert (there.engines["a"].inside, there.engines["b"].inside) == (0, 0)


@virtual
async def test_parts_are_in_an_ensemble_within_another_as_well():
    async with shelf() as there:
        await parts(there)
        config = there.configs["e"]
        config.model_transaction_policy.decoupled = is_decoupled(config, there)
        assert config.model_transaction_policy.decoupled
        await there.add_ensemble(
            ensemble_of("outer", {"in": [2]}, {"out": [2]}, ("e", {"in": "in"}, {"out": "out"}))
        )
        sink = there.ask("outer", sink=Parts(), **{"in": [40, 0]})
        await settle(5000)
        assert (len(sink.parts), sink.ends) == (40, [None])


@virtual
async def test_a_branch_that_ends_at_once_does_not_end_the_request():
    async with shelf() as there:
        for name in "ab":
            await there.add(config_of(name, ONE, {"y": [2]}), plus(1))
        await there.add_ensemble(
            ensemble_of(
                "e",
                {"in": [2]},
                {"p": [2], "q": [2]},
                ("a", {"x": "in"}, {"y": "p"}),
                ("b", {"x": "in"}, {"y": "q"}),
            )
        )
        for name in ("q", "p", "q"):  # the first request goes by the scheduler
            answer = await there.answer("e", RequestInfo(outputs=(name,)), **{"in": [1, 2]})
            assert answer == {name: [2, 3]}
