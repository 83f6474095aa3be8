"""The small parts of Ops on Ray: clocks, objects, models, cargo, who is near whom."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
import weakref
from pathlib import Path
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest
from doubles import RecordingOwner, virtual
from fake_ray import FakeRay, big

from pipeline import Op, RequestOp
from pipeline.config.op_settings import resolve_op
from pipeline.config.schema import LocalServiceConfig, OpConfig, load_config
from pipeline.config.sections import RayConfig, RayOpConfig
from pipeline.engine.worker_api import WorkerContext
from pipeline.errors import ConfigError, InitError, PayloadTypeError
from pipeline.op import configure_op
from pipeline.workers.process.wire import (
    ItemOutcome,
    Jobs,
    Result,
    StepTimes,
    WireItem,
    WireJob,
    WireParts,
    WorkerReport,
)
from pipeline.workers.ray.actor import ReportBox
from pipeline.workers.ray.api import ObjectGoneError
from pipeline.workers.ray.cargo import for_transport
from pipeline.workers.ray.clock import ServerClock
from pipeline.workers.ray.cluster import RayCluster
from pipeline.workers.ray.kind import RayKind
from pipeline.workers.ray.link import Sender
from pipeline.workers.ray.models import model_files, unpack_model
from pipeline.workers.ray.objects import MIN_BYTES, ActorMemory, ActorReply, RayMemory, decode_reply
from pipeline.workers.shm.payload import serialize

# Clocks ---------------------------------------------------------------------------------------


def jobs_due(deadline):
    return Jobs([WireJob(1, [WireItem(1, 0, {}, deadline), WireItem(2, 0, {})])], [])


def test_on_one_machine_times_are_unchanged():
    clock = ServerClock(True, lambda: 5_000_000_000)
    clock.heard(0)
    work = jobs_due(7.0)
    clock.to_here(work)
    assert work.jobs[0].items[0].deadline == 7.0


def test_deadlines_and_times_are_converted_between_clocks():
    now = iter([5_000_000_900, 6_000_000_100, 7_000_000_500])
    clock = ServerClock(False, lambda: next(now))
    for sent_ns in (1_000_000_000, 2_000_000_000, 3_000_000_000):
        clock.heard(sent_ns)  # the second one was on its way for the least time
    work = jobs_due(10.0)
    clock.to_here(work)
    assert [item.deadline for item in work.jobs[0].items] == [
        pytest.approx(14.0000001, abs=1e-9),
        None,
    ]
    ahead = 4_000_000_100
    result = Result(1, [], False, *(ahead + n for n in range(4)), execution_ends_ns=[ahead + 9])
    step = StepTimes(ahead + 3, ahead + 4, [], [], [ahead + 5])
    report = WorkerReport(results=[result], parts=[WireParts(1, [], ahead + 1, ahead + 2, step)])
    clock.to_server(report)
    times = result.start_ns, result.preprocess_end_ns, result.process_end_ns, result.end_ns
    assert (times, result.execution_ends_ns) == ((0, 1, 2, 3), [9])
    (parts,) = report.parts
    assert (parts.start_ns, parts.preprocess_end_ns) == (1, 2)
    assert (step.process_end_ns, step.end_ns, step.execution_ends_ns) == (3, 4, [5])


# Objects --------------------------------------------------------------------------------------


def replied(memory, *payloads):
    outcomes = [ItemOutcome(serialize(payload, memory, memory, MIN_BYTES)) for payload in payloads]
    return ActorReply([(1, WorkerReport(results=[Result(1, outcomes, False, 0, 0, 0, 0)]))])


def test_large_answers_are_spread_over_the_objects_of_a_reply():
    memory = ActorMemory()
    message, *objects = memory.pack(replied(memory, {"x": big(1)}, {"x": 2}, {"x": big(3)}), 2)
    assert [item[0][0] for item in objects] == [1, 3]
    ((_, report),) = decode_reply(message).reports
    blocks = [outcome.payload.buffers for outcome in report.results[0].outcomes]
    assert [[block.region for block in item] for item in blocks] == [[0], [], [1]]


def test_a_reply_without_objects_is_alone_unless_something_is_large_after_all():
    memory = ActorMemory()
    assert isinstance(memory.pack(replied(memory, {"x": 2}), 0), bytes)
    message, held = memory.pack(replied(memory, {"x": big(5)}), 0)
    assert isinstance(message, bytes)
    assert held[0][0] == 5


def test_a_lost_object_has_no_reference_and_cannot_be_opened():
    api = FakeRay()
    memory = RayMemory(api)
    with pytest.raises(ObjectGoneError, match="nobody waits"):
        memory.ref(7)
    number = memory.adopt("a reference")
    memory.hold(number)
    payload = memory.serialize({"x": big(1)})
    (block,) = payload.serialized.buffers
    payload.serialized.buffers[0] = type(block)(number, 0, block.size)

    def lost(ref, timeout_s):
        raise ObjectGoneError("the node died")

    api.get = lost
    with pytest.raises(PayloadTypeError, match="an answer is lost: the node died"):
        payload.open()
    payload.serialized.buffers[0] = block
    memory.release(number)
    del payload
    assert memory.count == 0


def test_a_payload_for_several_actors_is_put_once():
    api = FakeRay()
    memory = RayMemory(api)
    payload = memory.serialize({"x": big(1), "y": big(2)})
    (number,) = {block.region for block in payload.serialized.buffers}
    assert memory.ref(number) is memory.ref(number)
    assert len(api.stored) == 1
    assert payload.open()["y"][0] == 2


def test_records_wait_for_a_result_or_the_end():
    box = ReportBox()
    box.add_record(b"a line")
    assert not box.wait(0.0)
    box.add(WorkerReport(), is_urgent=False)
    assert [serial for serial, _ in box.take()] == [1, 2]
    assert box.take() == []
    box.add(WorkerReport(), is_urgent=True)
    assert box.wait(0.0)
    box.close()
    assert not box.wait(60.0), "nobody waits any more"


# Messages ----------------------------------------------------------------------------------


class Named(Op):
    """Of this module: pickled by name."""


def test_an_op_travels_without_the_graph_around_it():
    first = Named("first", RequestOp())
    first.handle = object()  # what cannot be pickled
    second = Named("second", [first, Named("other", RequestOp())])
    Named("third", second)
    sent = for_transport(second)
    assert [op.name for op in sent.get_input_ops()] == ["first", "other"]
    assert not any(hasattr(op, "handle") for op in sent.get_input_ops())
    assert list(sent.pipeline_consumers) == []
    assert [type(op) for op in second.get_input_ops()] == [Named, Named], "it is a copy"


def op_with(model, **ray):
    op = Named("named")
    local = LocalServiceConfig(model_config=model)
    configure_op(op, OpConfig(local_service_conf=local, ray=RayOpConfig(**ray)))
    return op


@pytest.mark.parametrize("name", ["model.onnx", "model"])
def test_a_model_is_unpacked_where_the_actor_is(tmp_path, name):
    path = tmp_path / name
    if name == "model":
        (path / "1").mkdir(parents=True)
        (path / "1" / "weights").write_bytes(b"w")
    else:
        path.write_bytes(b"m")
    op = op_with(f"models/{name}")
    files = model_files(op, path)
    with contextlib.ExitStack() as ends:
        unpack_model(op, list(files), [np.array(data) for data in files.values()], ends)
        there = Path(op.pipeline_config.local_service_conf.model_config)
        assert there != path
        result = there / "1" / "weights" if name == "model" else there
        assert result.read_bytes() in (b"w", b"m")
    assert not there.exists()


def test_a_missing_model_is_an_error(tmp_path):
    with pytest.raises(InitError, match=r"op.named.ray.model_from: .* found 0 files at .*nowhere"):
        model_files(op_with("nowhere"), tmp_path / "nowhere")


# The kind -------------------------------------------------------------------------------------


def kind_of(*ops):
    config = load_config(yml_dict={"rpc_port": 0})
    return RayKind(ops, WorkerContext(config, lambda op, number: None), FakeRay())


def near(name, other):
    op = Named(name)
    configure_op(op, OpConfig(workers="ray", ray=RayOpConfig(near=other)))
    return op


def test_near_must_name_an_op_with_actors():
    with pytest.raises(ConfigError, match=r"op.a.ray.near: a near b: there are no actors of that"):
        kind_of(near("a", "b")).fork()


def test_two_that_are_near_each_other_are_refused():
    with pytest.raises(ConfigError, match=r"op.a.ray.near: a near b near a: they wait for each"):
        kind_of(near("a", "b"), near("b", "a")).fork()


def test_an_actor_near_another_op_is_placed_on_its_node():
    other, op = near("b", None), near("a", "b")
    kind = kind_of(other, op)
    kind.fork()
    kind._pools["b"] = SimpleNamespace(nodes=["n2", "", "n1"])
    kind._pools["a"] = SimpleNamespace(nodes=["n3"])
    assert [kind.node_for(op, number, "") for number in range(3)] == ["n1", "n2", "n1"]
    assert kind.node_for(op, 0, "n1") == "n2"
    assert kind.node_for(other, 0, "") is None
    assert kind.node_for(other, 0, "n2") == "n1", "a node that answers"


@pytest.mark.parametrize(
    ("workers", "is_cached", "passes_on"),
    [("ray", False, True), ("ray", True, False), ("thread", False, False)],
)
@virtual
async def test_answers_are_fetched_unless_all_their_readers_are_actors(
    workers, is_cached, passes_on
):
    first = near("a", None)
    second = Named("b", first)
    configure_op(second, OpConfig(workers=workers, response_cache=is_cached))
    kind = kind_of(*(op for op in (first, second) if op.pipeline_config.workers == "ray"))
    kind.attach(asyncio.get_running_loop(), lambda: None)
    assert kind.workers(first, 1, RecordingOwner()).passes_on is passes_on


@virtual
async def test_a_kind_without_actors_can_be_closed():
    kind = kind_of(near("a", None))
    kind.attach(asyncio.get_running_loop(), lambda: None)
    await kind.close()


def test_without_ray_the_start_fails_and_names_the_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(InitError, match=r"pip install 'pipeline-serving\[ray\]'"):
        RayCluster().connect(RayConfig())


def test_pipelines_share_a_connection_and_the_last_one_ends_it(monkeypatch):
    calls = []
    ray = SimpleNamespace(
        is_initialized=lambda: "init" in calls,
        init=lambda **settings: calls.append("init"),
        shutdown=lambda: calls.append("shutdown"),
        cloudpickle=SimpleNamespace(register_pickle_by_value=lambda module: None),
    )
    monkeypatch.setitem(sys.modules, "ray", ray)
    first, second, unused = RayCluster(), RayCluster(), RayCluster()
    first.connect(RayConfig(address="local"))
    second.connect(RayConfig(address="local"))
    unused.close()
    first.close()
    assert calls == ["init"], "the second one's actors are at work"
    second.close()
    second.close()
    assert calls == ["init", "shutdown"]


def test_a_slow_op_has_the_workers_of_dag():
    slow = {"bow": {"usual_time": 20}, "cow": {"usual_time": 2}, "own": {"workers": "process"}}
    config = load_config(yml_dict={"rpc_port": 0, "dag": {"workers": "ray"}, "op": slow})
    kinds = [resolve_op(name, {}, config).workers for name in ("bow", "cow", "own", "else")]
    assert kinds == ["ray", "thread", "process", "thread"]


def test_resources_are_read_by_their_names():
    keys = {"workers": "ray", "ray": {"resources": {"disk": 2}, "num_gpus": 0.5}}
    config = load_config(yml_dict={"rpc_port": 0, "op": {"bow": keys}})
    assert config.op["bow"].ray == RayOpConfig(resources={"disk": 2.0}, num_gpus=0.5)
    wrong = {"bow": {"ray": {"resources": {"disk": "much"}}}}
    with pytest.raises(ConfigError, match=r"resources: expected mapping of str to number"):
        load_config(yml_dict={"rpc_port": 0, "op": wrong})
    assert msgspec.structs.asdict(RayOpConfig())["placement"] == "any"


def test_a_sender_does_not_keep_a_call_that_it_has_made():
    class Call:
        def __call__(self):
            """Do nothing."""

    call, gone, sender = Call(), threading.Event(), Sender("test")
    weakref.finalize(call, gone.set)
    sender.start()
    sender.do(call)
    del call
    assert gone.wait(60)
    sender.close()
    sender.join()
