"""A whole server in this process: real threads, real sockets, real clients."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import re
import socket
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import grpc
import numpy as np
import pytest
from doubles import (
    Engine,
    Tag,
    chain,
    client_of,
    http,
    on_loop,
    post,
    server_for,
    settle,
    virtual,
    wait_until,
)
from grpc_health.v1 import health_pb2, health_pb2_grpc
from served import free_port

from pipeline import (
    AsyncPipelineClient,
    Op,
    PipelineServer,
    ProductError,
    RequestOp,
    ResponseOp,
    WebService,
)
from pipeline.engine import engine
from pipeline.errors import ConfigError, GraphError, InitError, OverloadedError
from pipeline.proto import pipeline_service_pb2

pytestmark = pytest.mark.usefixtures("open_files")


def test_a_request_is_answered_over_grpc_and_http():
    with server_for(chain("a", "b")) as server, client_of(server) as client:
        response = client.predict({"path": "in"})
        assert (response.err_no, response["path"]) == (0, "in>a>b")
        assert post(server, {"key": ["path"], "value": ["in"]}) == (
            200,
            {"err_no": 0, "err_msg": "", "key": ["path"], "value": ["in>a>b"], "tensors": []},
        )


class StoresPicture(Op):
    """The classic script: state that one stage stores and another reads."""

    def preprocess(self, input_dicts, data_id, log_id):
        ((_, answer),) = input_dicts.items()
        self.raw_im = answer["im"]
        self.meeting.wait()  # all workers have stored before any of them reads
        return {"im": answer["im"]}, False, None, ""

    def postprocess(self, input_dicts, fetch_dict, data_id, log_id):
        return {"im": self.raw_im}, None, ""


def test_state_on_self_is_the_workers_own_with_eight_threads():
    op = StoresPicture("keeps", [RequestOp()], concurrency=8)
    op.meeting = threading.Barrier(8, timeout=30)
    with server_for(op) as server, client_of(server) as client:
        asked = [client.predict({"im": str(i)}, asyn=True) for i in range(64)]
        assert [future.result().value[0] for future in asked] == [str(i) for i in range(64)]


class Sums(Op):
    def preprocess(self, input_dicts, data_id, log_id):
        ((_, answer),) = input_dicts.items()
        return {"x": answer["x"]}, False, None, ""

    def process(self, feed_batch, typical_logid):
        return {"sum": feed_batch[0]["x"].sum(axis=1, keepdims=True)}


def test_tensors_are_sent_and_tensors_and_text_are_returned():
    with server_for(Sums("sums", [RequestOp()])) as server, client_of(server) as client:
        x = np.arange(6, dtype=np.float32).reshape(2, 3)
        response = client.predict({"x": x}, pack_tensor_format=True)
        assert response.err_no == 0
        assert [tensor.name for tensor in response.tensors] == ["sum"]
        assert list(response.value) == ["array([[ 3.],\n       [12.]], dtype=float32)"]
        np.testing.assert_array_equal(response.as_numpy("sum"), [[3], [12]])


@pytest.mark.parametrize("who", ["last op", "response op"])
def test_a_client_that_requests_tensors_gets_tensors_only(who):
    class Numbers(Op):
        def postprocess(self, input_dicts, fetch_dict, data_id, log_id):
            return {"n": np.array([1, 2]), "raw": b"\x00\xff", "f": 0.5}, None, ""

    last = Numbers("n", [RequestOp()])
    end = ResponseOp([last])
    if who == "last op":
        last.set_pack_tensor_format(True)
    else:
        end.set_pack_format(True)
    with server_for(last, response_op=end) as server, client_of(server) as client:
        response = client.predict({"x": "1"})
        assert list(response.key) == []
        assert response.as_numpy("n").tolist() == [1, 2]
        assert {tensor.name for tensor in response.tensors} == {"n", "raw", "f"}


def test_a_text_answer_is_the_repr_of_the_whole_array():
    class Long(Op):
        def postprocess(self, input_dicts, fetch_dict, data_id, log_id):
            return {"v": np.arange(3000), "names": ["é", "b"]}, None, ""

    with server_for(Long("long", [RequestOp()])) as server, client_of(server) as client:
        response = client.predict({})
        assert "..." not in response.value[0]
        assert response["v"].tolist() == list(range(3000))
        assert response.value[1] == "['é', 'b']"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"a": "ok", "n": None}, "@DAGExecutor fetch var type must be str(<class 'NoneType'>)."),
        ({"a": "ok", "n": [5]}, "@DAGExecutor fetch var type must be str(<class 'list'>)."),
        ({"a": np.zeros(1), "n": "x"}, "@DAGExecutor fetch var type must be str("),
    ],
)
def test_a_mixed_text_answer_is_a_type_error(value, text):
    class Mixed(Op):
        def postprocess(self, input_dicts, fetch_dict, data_id, log_id):
            return value, None, ""

    with server_for(Mixed("m", [RequestOp()])) as server, client_of(server) as client:
        response = client.predict({})
        assert response.err_no == 7000
        assert response.err_msg.startswith(text)


def test_numbers_are_answered_as_their_text():
    class Numbers(Op):
        def postprocess(self, input_dicts, fetch_dict, data_id, log_id):
            given = next(iter(input_dicts.values()))
            beside = {"label": "zh"} if given["beside"] == "text" else {"array": np.zeros(1)}
            numbers = {"prob": 0.86, "f4": np.float32(0.86), "n": 7, "i8": np.int64(-7)}
            return {**beside, **numbers, "yes": True, "no": np.bool_(False)}, None, ""

    with server_for(Numbers("n", [RequestOp()])) as server:
        for beside, text in (("text", "zh"), ("array", "array([0.])")):
            body = {"key": ["beside"], "value": [beside]}
            status, answer = post(server, body)
            assert (status, answer["err_no"]) == (200, 0)
            assert answer["value"] == [text, "0.86", "0.86", "7", "-7", "True", "False"]


def test_empty_answers_are_answers():
    class Empty(Op):
        def postprocess(self, input_dicts, fetch_dict, data_id, log_id):
            return {"x": []}, None, ""

    with server_for(Empty("e", [RequestOp()])) as server, client_of(server) as client:
        response = client.predict({})
        assert (response.err_no, list(response.value)) == (0, ["[]"])


def test_product_errors_reach_the_caller_raised_or_returned():
    class Refuses(Op):
        def preprocess(self, input_dicts, data_id, log_id):
            ((_, answer),) = input_dicts.items()
            if answer["how"] == "raise":
                raise ProductError(100001, "by raise")
            return {}, False, 100001, "by return"

    with server_for(Refuses("r", [RequestOp()])) as server, client_of(server) as client:
        for how in ("raise", "return"):
            response = client.predict({"how": how})
            assert (response.err_no, response.err_msg) == (100001, f"by {how}")


def test_an_async_op_runs_on_the_loop():
    class Waits(Op):
        async def preprocess(self, input_dicts, data_id, log_id):
            await asyncio.sleep(0)
            return {"loop": type(asyncio.get_running_loop()).__module__}

    with server_for(Waits("w", [RequestOp()])) as server, client_of(server) as client:
        assert client.predict({})["loop"].startswith("uvloop")


@pytest.mark.parametrize("workers", ["thread", "process"])
@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt])
def test_an_async_method_that_ends_the_program_ends_its_request_only(error, workers):
    class Leaves(Op):
        async def process(self, feed_batch, typical_logid):
            if feed_batch[0]["how"] == "leave":
                raise error("of the user")
            return feed_batch[0]

    op, config = Leaves("leaves", [RequestOp()]), {"leaves": {"workers": workers}}
    with server_for(op, op=config) as server, client_of(server) as client:
        for _ in range(2):
            response = client.predict({"how": "leave"})
            assert response.err_no
            assert error.__name__ in response.err_msg
            assert client.predict({"how": "stay"})["how"] == "stay"


def test_a_client_is_answered_in_time_while_user_code_hangs():
    release = threading.Event()

    class Hangs(Op):
        def process(self, feed_batch, typical_logid):
            if feed_batch[0]["how"] == "hang":
                release.wait(60)
            return feed_batch[0]

    op = Hangs("hangs", [RequestOp()], timeout=500)
    with server_for(op) as server, client_of(server) as client:
        try:
            assert client.predict({"how": "hang"}).err_no == 6000
            assert client.predict({"how": "go"})["how"] == "go"
        finally:
            release.set()


def late(client):
    """How a call past its deadline ends: the server and the client's own clock race to say so."""
    try:
        return client.predict({}, timeout=0.2).err_no
    except grpc.RpcError as error:
        return error.code()


def test_the_deadline_of_a_client_is_met():
    release = threading.Event()

    class Hangs(Op):
        def preprocess(self, input_dicts, data_id, log_id):
            release.wait(60)
            return {}

    with server_for(Hangs("hangs", [RequestOp()])) as server, client_of(server) as client:
        try:
            assert late(client) in (6000, grpc.StatusCode.DEADLINE_EXCEEDED)
            wait_until(lambda: server.executor.inside == 0)
            status, answer = post(server, b"", **{"Grpc-Timeout": "100m"})
            assert (status, answer["err_no"]) == (200, 6000)
        finally:
            release.set()


def test_overload_is_refused_at_once_with_its_own_code():
    entered, release = threading.Semaphore(0), threading.Event()

    class Slow(Op):
        def preprocess(self, input_dicts, data_id, log_id):
            entered.release()
            release.wait(60)
            return {"ok": "1"}

    op = Slow("slow", [RequestOp()])
    with server_for(op, worker_num=1, queue_size=1) as server, client_of(server) as client:
        first = client.predict({}, asyn=True)
        assert entered.acquire(timeout=30)
        second = client.predict({}, asyn=True)
        wait_until(lambda: server.executor.waiting == 1)
        with pytest.raises(grpc.RpcError) as caught:
            client.predict({})
        assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        status, answer = post(server, {})
        assert (status, answer["err_no"]) == (503, 3004)
        release.set()
        assert [future.result()["ok"] for future in (first, second)] == [1, 1]


def test_a_request_that_cannot_be_in_time_gets_retry_after_at_each_frontend(monkeypatch):
    def is_too_much(request, admission, executor):
        raise OverloadedError(f"server is overloaded: {request.timeout_s:.3g} s are too few", 7)

    monkeypatch.setattr(engine, "judge", is_too_much)
    with server_for(Tag("a", [RequestOp()])) as server, client_of(server) as client:
        assert client.predict({"path": "x"})["path"] == "x>a", "it has all the time there is"
        with pytest.raises(grpc.RpcError) as caught:
            client.predict({"path": "x"}, timeout=2)
        assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "are too few" in caught.value.details()
        reported = dict(caught.value.trailing_metadata())
        assert (reported["pipeline-err-no"], reported["grpc-retry-pushback-ms"]) == ("3004", "7000")
        body = {"key": ["path"], "value": ["x"]}
        hurried = {"grpc-timeout": "2S"}
        result = http(server, "POST", "/svc/prediction", body, hurried)
        assert (result[0], result[1]["retry-after"], result[2]["err_no"]) == (503, "7", 3004)
        body = {"inputs": [{"name": "path", "datatype": "BYTES", "shape": [1], "data": ["x"]}]}
        result = http(server, "POST", "/v2/models/svc/infer", body, hurried)
        assert (result[0], result[1]["retry-after"]) == (503, "7")
        assert result[2] == {"error": "server is overloaded: 2 s are too few"}


def test_a_disconnect_frees_the_place_of_its_request(holds):
    with server_for(holds) as server, client_of(server) as client:
        future = client.predict({}, asyn=True)
        assert holds.entered.acquire(timeout=30)
        future.cancel()
        wait_until(lambda: server.executor.inside == 0)
        with socket.create_connection(("127.0.0.1", server.http_port)) as caller:
            caller.sendall(b"POST /svc/p HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}")
            wait_until(lambda: server.executor.inside == 1)
        wait_until(lambda: server.executor.inside == 0)
        holds.release.set()


def test_the_service_name_is_checked_and_no_name_serves_all():
    with server_for(chain("a"), name="svc") as server, client_of(server) as client:
        status, answer = post(server, {}, "/other/prediction")
        assert (status, answer["err_no"]) == (200, 3002)
        assert answer["err_msg"].startswith("Failed to inference: Service name error.")
        assert client.predict({}).err_no == 0, "a request without a name is for this server"
    with server_for(chain("a"), name=None) as server:
        assert post(server, {}, "/anything/prediction")[1]["err_no"] == 0


# Starting and stopping --------------------------------------------------------------------


def free_pair() -> int:
    """A free port whose neighbour is free too."""
    while True:
        port = free_port()
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port + 1)):
            return port


@pytest.mark.parametrize("key", ["rpc_port", "http_port"])
def test_a_port_in_use_is_named_and_no_server_is_left_running(key):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        server = server_for(chain("a"), **{key: port})
        with pytest.raises(InitError, match=f"{key}: cannot listen on .*{port}"):
            server.start()


def test_two_servers_never_share_a_port():
    with server_for(chain("a")) as one:
        for key, port in (("rpc_port", one.rpc_port), ("http_port", one.http_port)):
            with pytest.raises(InitError, match=key):
                server_for(chain("b"), **{key: port}).start()


def test_a_second_start_on_the_same_ports_works_at_once():
    ports = {"rpc_port": free_port(), "http_port": free_port()}
    for _ in range(3):
        with server_for(chain("a"), **ports) as server, client_of(server) as client:
            assert client.predict({"path": "x"})["path"] == "x>a"
            assert post(server, {})[0] == 200


def test_rpc_port_alone_has_no_http_and_http_port_alone_has_rpc_on_the_next_port():
    server = PipelineServer("svc")
    server.set_response_op(ResponseOp([chain("a")]))
    server.prepare_server(yml_dict={"rpc_port": 0})
    with server, client_of(server) as client:
        assert server.http_port is None
        assert client.predict({}).err_no == 0
    port = free_pair()
    server.prepare_server(yml_dict={"http_port": port})
    with server:
        assert (server.http_port, server.rpc_port) == (port, port + 1)


def test_an_init_op_that_fails_fails_the_start_with_the_ops_name():
    class Broken(Op):
        def init_op(self):
            raise FileNotFoundError("imdb.vocab")

    last = Tag("after", [Broken("needs_vocab", [RequestOp()])])
    with pytest.raises(
        InitError,
        match=r"(?s)'needs_vocab' failed to start: \w+: imdb.vocab.*init_op",
    ):
        server_for(last).start()


def test_the_request_ops_init_op_counts_too():
    class Broken(RequestOp):
        def init_op(self):
            raise OSError("no dictionary")

    with pytest.raises(InitError, match="no dictionary"):
        server_for(chain("a", read=Broken())).start()


def test_a_missing_model_fails_the_start():
    server = server_for(chain("a"), op={"a": {"local_service_conf": {"model_config": "no.onnx"}}})
    with pytest.raises(InitError, match=r"(?s)'a'.*no\.onnx"):
        server.start()


def test_a_wrong_order_of_preparation_is_an_error():
    with pytest.raises(GraphError, match="set_response_op"):
        PipelineServer().prepare_server(yml_dict={"rpc_port": 0})
    server = PipelineServer()
    server.set_response_op(ResponseOp([chain("a")]))
    with pytest.raises(ConfigError, match="prepare_server"):
        server.start()
    with pytest.raises(InitError, match="not running"):
        _ = server.rpc_port


@on_loop
async def test_a_server_lives_inside_a_running_loop_as_well():
    async with server_for(chain("a")) as server:
        async with AsyncPipelineClient() as client:
            client.connect([f"127.0.0.1:{server.rpc_port}"])
            responses = await asyncio.gather(*(client.predict({"path": str(i)}) for i in range(20)))
        assert [response["path"] for response in responses] == [f"{i}>a" for i in range(20)]


def test_stop_answers_running_requests_and_is_idempotent(holds):
    server = server_for(holds).start()
    with client_of(server) as client, ThreadPoolExecutor() as pool:
        future = client.predict({}, asyn=True)
        assert holds.entered.acquire(timeout=30)
        stopping = pool.submit(server.stop)
        holds.release.set()
        assert future.result()["done"] == 1
        stopping.result()
    server.stop()


def test_stop_gives_up_requests_after_the_grace_period(holds):
    server = server_for(holds, stop_grace_period=50).start()
    with client_of(server) as client, ThreadPoolExecutor() as pool:
        future = client.predict({}, asyn=True)
        answered = pool.submit(post, server, {})
        assert holds.entered.acquire(timeout=30)
        wait_until(lambda: server.executor.inside == 2)
        stopping = pool.submit(server.stop)
        assert future.result().err_no == 3001
        assert answered.result()[1]["err_no"] == 3001
        holds.release.set()
        stopping.result()


@virtual
async def test_the_grace_period_can_be_cut_short():
    async with Engine(chain("a"), service_s={"a": None}) as engine:
        tasks = [engine.ask(path=str(number)) for number in range(3)]
        await settle()
        stopping = asyncio.create_task(engine.executor.stop(600.0))
        await settle()
        assert not stopping.done()
        before = asyncio.get_running_loop().time()
        engine.executor.answer_all_closed()
        assert [(await answer).err_no for answer in tasks] == [3001] * 3
        await stopping
        assert asyncio.get_running_loop().time() == before


@virtual
async def test_stop_does_not_wait_for_workers_that_never_started():
    engine = Engine(chain("a"))
    task = engine.ask(path="x")
    await settle()
    before = asyncio.get_running_loop().time()
    await engine.executor.stop(600.0)
    assert (await task).err_no == 3001
    assert asyncio.get_running_loop().time() == before


# Health and logs --------------------------------------------------------------------------


def channel_to(server):
    return grpc.insecure_channel(f"127.0.0.1:{server.rpc_port}")


def test_health_is_ready_over_both_frontends():
    with server_for(chain("a")) as server, channel_to(server) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        status = stub.Check(health_pb2.HealthCheckRequest()).status
        assert status == health_pb2.HealthCheckResponse.SERVING


def test_reflection_names_the_service():
    from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

    with server_for(chain("a")) as server, channel_to(server) as channel:
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        ask = reflection_pb2.ServerReflectionRequest(list_services="")
        (answer,) = stub.ServerReflectionInfo(iter([ask]))
        names = [service.name for service in answer.list_services_response.service]
    assert "baidu.paddle_serving.pipeline_serving.PipelineService" in names
    assert pipeline_service_pb2.DESCRIPTOR.package in names[0] or len(names) > 1


def test_only_our_logs_are_written_while_the_server_runs(tmp_path):
    class Refuses(Op):
        def preprocess(self, input_dicts, data_id, log_id):
            raise ProductError(60, "no")

    folder = tmp_path / "PipelineServingLogs"
    server = server_for(Refuses("r", [RequestOp()]))
    assert not folder.exists()
    root_handlers = list(logging.getLogger().handlers)
    with server, client_of(server) as client:
        client.predict({}, log_id=77)
    assert logging.getLogger().handlers == root_handlers
    log = (folder / "pipeline.log").read_text()
    assert "is ready" in log
    assert re.search(r"INFO .*\(data_id=0 log_id=77\) Failed to predict: no\n", log)
    assert (folder / "pipeline.log.wf").read_text() == ""


def test_web_service_needs_only_the_last_op_and_may_replace_both_ends():
    class Shouts(ResponseOp):
        def pack_response_package(self, channeldata):
            response = super().pack_response_package(channeldata)
            response.value[:] = [value.upper() for value in response.value]
            return response

    class Service(WebService):
        def get_pipeline_response(self, read_op):
            return Tag("a", [read_op])

        def get_response_op(self, last_op):
            return Shouts([last_op])

    service = Service(name="svc")
    service.prepare_pipeline_config(yml_dict={"rpc_port": 0, "http_port": 0})
    with service._server as server:
        assert post(server, {"key": ["path"], "value": ["x"]})[1]["value"] == ["X>A"]


def test_a_web_service_that_returns_no_op_is_an_error():
    with pytest.raises(GraphError, match="get_pipeline_response must return the last Op"):
        WebService("x").prepare_pipeline_config(yml_dict={"rpc_port": 0})


def test_the_gil_is_handed_over_sooner_while_a_server_runs():
    before = sys.getswitchinterval()
    with server_for(chain("a"), switch_interval=200):
        assert sys.getswitchinterval() == pytest.approx(0.0002)
    assert sys.getswitchinterval() == before


# The context of the server's starter -------------------------------------------------------

MARK = contextvars.ContextVar("mark", default="none")


class UnpacksMark(RequestOp):
    def unpack_request_package(self, request):
        return {"unpack": MARK.get()}


class PacksMark(ResponseOp):
    def pack_response_package(self, channeldata):
        response = pipeline_service_pb2.Response(key=["pack"], value=[MARK.get()])
        for key, value in channeldata.parse().items():
            response.key.append(key)
            response.value.append(value)
        return response


class AddsMark(Op):
    def preprocess(self, input_dicts, data_id, log_id):
        ((_, answer),) = input_dicts.items()
        return {**answer, "preprocess": MARK.get()}, False, None, ""

    async def postprocess(self, input_dicts, fetch_dict, data_id, log_id):
        return {**fetch_dict, "async": MARK.get()}, None, ""


@pytest.mark.parametrize("workers", ["thread", "process"])
@pytest.mark.parametrize("copies", [False, True])
def test_user_code_runs_in_the_context_of_the_starting_thread(workers, copies):
    op = AddsMark("adds", [UnpacksMark()])
    token = MARK.set("starter")
    try:
        dag = {"is_thread_op": workers == "thread"}
        config = {"build_dag_each_worker": copies, "worker_num": 1}
        with (
            server_for(op, response_op=PacksMark(op), dag=dag, **config) as server,
            client_of(server) as client,
        ):
            predict = client.predict({"x": "1"})
            assert {key: predict[key] for key in predict.key} == dict.fromkeys(
                ("unpack", "preprocess", "async", "pack"), "starter"
            )
    finally:
        MARK.reset(token)
