"""The predictor for servers of OpenAI's API: against one that a test plays, and ours."""

from __future__ import annotations

import base64
import contextlib
import logging
import socket
import ssl
import threading
import urllib.request
from collections.abc import Iterator
from typing import Any

import jsonschema
import numpy as np
import openai
import pytest
import trustme
import yaml
from doubles import client_of, http, server_for, wait_until
from openai_models import SaysByWord, openai_server
from openai_upstream import DONE, KEY, USAGE, Upstream, chat, delta, says, streams, upstream

from pipeline import Op, PipelineServer, RequestOp
from pipeline.cli.config import config as show
from pipeline.config.json_schema import config_schema
from pipeline.config.schema import load_config
from pipeline.data import RequestContext
from pipeline.errors import (
    ClosedError,
    DeadlineError,
    InitError,
    InputError,
    PredictorError,
    PredictorUnavailableError,
)
from pipeline.predictors.remote import http_calls, pool
from pipeline.predictors.remote.base import RemoteModel, connect_remote_predictor
from pipeline.predictors.remote.openai import OpenAIPredictor

ASK = {"messages": [{"role": "user", "content": "hello"}], "temperature": 0.5}
HELLO = (delta(role="assistant", content=""), delta(content="he"), delta(content="llo"))


@contextlib.contextmanager
def asking(*endpoints: str, **options: Any) -> Iterator[OpenAIPredictor]:
    """A predictor that asks servers."""
    options = {"api_key": KEY, **options}
    model = RemoteModel("llm", "openai", endpoints, model_name="small", options=options)
    predictor: Any = connect_remote_predictor(model)
    try:
        yield predictor
    finally:
        predictor.close()


@contextlib.contextmanager
def played(*answers: Any, **options: Any) -> Iterator[tuple[OpenAIPredictor, Upstream]]:
    with upstream(*answers) as server, asking(server.url, **options) as predictor:
        yield predictor, server


class CallsRemoteModel(Op):
    """Asks a model elsewhere, part by part."""

    def __init__(self, **options: Any) -> None:
        super().__init__("llm", [RequestOp()], client_type="openai", **options)

    def preprocess(self, input_dicts: Any) -> Any:
        return {"messages": [{"role": "user", "content": input_dicts["@DAGExecutor"]["prompt"]}]}

    def process(self, feed_batch: Any, *, context: Any) -> Any:
        yield from self.client.stream(feed_batch[0], context)

    def postprocess(self, input_dicts: Any, fetch_data: Any) -> Any:
        return {name: str(value) for name, value in fetch_data.items()}


# Requests, and the outputs made of the answers ---------------------------------------------------


def test_a_chat_is_sent_unchanged_and_answered_with_our_keys():
    calls = [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
    with played(says(chat(None, "tool_calls", tool_calls=calls))) as (predictor, server):
        answer = predictor.predict({**ASK, "seed": None, "top_p": np.array([0.25])})
    (asked,) = server.asked
    assert asked.path == "/v1/chat/completions"
    assert asked.body == {"model": "small", **ASK, "top_p": 0.25}
    assert asked.headers["authorization"] == f"Bearer {KEY}"
    assert answer == {
        "text": "",
        "tool_calls": calls,
        "finish_reason": "tool_calls",
        "prompt_tokens": 5,
        "completion_tokens": 2,
    }


def test_a_server_that_continues_after_the_end_of_a_stream_is_disconnected():
    def endless(handler: Any, asked: Any) -> None:
        streams(*HELLO, is_cut=True)(handler, asked)
        with contextlib.suppress(OSError):
            handler.wfile.write(b"%x\r\n%b\r\n" % (len(DONE), DONE))
            while True:
                handler.wfile.write(b"1\r\n \r\n")
        handler.server.left.put(handler.number)

    with played(endless) as (predictor, server):
        assert "".join(part["text"] for part in predictor.stream(ASK)) == "hello"
        assert server.left.get(timeout=20) == 1


def test_a_text_and_only_the_outputs_that_are_wanted():
    completion = {"choices": [{"index": 0, "text": "b c", "finish_reason": "length"}]}
    with played(says(completion)) as (predictor, server):
        assert predictor.predict({"prompt": ["a"]}, ["text"]) == {"text": "b c"}
    assert server.asked[0].path == "/v1/completions"
    assert server.asked[0].body["prompt"] == "a"


@pytest.mark.parametrize("in_base64", [True, False])
def test_a_batch_is_embedded_by_one_call(in_base64):
    rows = np.arange(6, dtype="<f4").reshape(3, 2)
    form = (
        (lambda row: base64.b64encode(row.tobytes()).decode()) if in_base64 else np.ndarray.tolist
    )
    data = [{"index": at, "embedding": form(rows[at])} for at in (2, 0, 1)]
    with played(says({"data": data, "usage": {"prompt_tokens": 9}})) as (predictor, server):
        answer = predictor.predict({"input": np.array(["a", "b", "c"], object), "dimensions": 2})
    np.testing.assert_array_equal(answer["embedding"], rows)
    assert answer["prompt_tokens"].tolist() == [9, 0, 0]
    assert server.asked[0].body == {
        "model": "small",
        "encoding_format": "base64",
        "input": ["a", "b", "c"],
        "dimensions": 2,
    }


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (b"<html>", "cannot be used"),
        (b"[]", "not an object"),
        ({"choices": []}, "cannot be used"),
        ({"choices": [{"message": {"content": 3}}]}, "the content is not text"),
        ({**chat("a"), "usage": {"prompt_tokens": -1}}, "other counts"),
    ],
)
def test_an_invalid_answer_is_an_error(answer, said):
    with played(says(answer)) as (predictor, _), pytest.raises(PredictorError, match=said):
        predictor.predict(ASK)


def test_too_few_embeddings_are_refused():
    answer = says({"data": [{"index": 0, "embedding": [1.0]}]})
    with played(answer) as (predictor, _), pytest.raises(PredictorError, match="1 embeddings"):
        predictor.predict({"input": ["a", "b"]})


@pytest.mark.parametrize(
    "feed", [{"text": "a"}, {"input": ["a", "b"], "user": ["x", "y"]}, {"prompt": object()}]
)
def test_an_invalid_feed_is_refused(feed):
    with played(says({})) as (predictor, server), pytest.raises(InputError):
        predictor.predict(feed)
    assert not server.asked


@pytest.mark.parametrize(
    "endpoint", ["", "ftp://a", "http://user:pass@a/v1", "http://a:x", "nowhere"]
)
def test_an_invalid_endpoint_is_refused(endpoint):
    with pytest.raises(InitError, match=r"op\.llm\.server_endpoints") as raised, asking(endpoint):
        pass
    assert "pass" not in str(raised.value)


@pytest.mark.parametrize(
    ("said", "token"),
    [
        ({"content": [{"token": "a", "logprob": -1.0, "top_logprobs": []}]}, []),
        (
            {"tokens": ["a"], "token_logprobs": [-1.0], "top_logprobs": [{"b": -2.0}]},
            [{"token": "b", "logprob": -2.0}],
        ),
        ({"tokens": ["a"], "token_logprobs": [-1.0], "top_logprobs": None}, []),
    ],
)
def test_log_probabilities_have_one_form(said, token):
    choice = {"index": 0, "text": "a", "logprobs": said, "finish_reason": "stop"}
    with played(says({"choices": [choice]})) as (predictor, _):
        reported = predictor.predict({"prompt": "x"})["logprobs"]
    assert reported == [{"token": "a", "logprob": -1.0, "top_logprobs": token}]


def test_callers_cannot_choose_the_model_and_the_number_of_answers():
    with played(says(chat("a"))) as (predictor, server):
        predictor.predict({**ASK, "model": "large", "stream": True, "n": 1})
        with pytest.raises(InputError, match="n: one answer"):
            predictor.predict({**ASK, "n": 2})
    assert server.asked[0].body == {**ASK, "model": "small"}


# Streams ----------------------------------------------------------------------


def test_parts_are_returned_one_by_one_and_the_connection_is_reused():
    chunks = (*HELLO, delta("stop"), USAGE)
    with played(streams(*chunks)) as (predictor, server):
        first = list(predictor.stream(ASK))
        assert list(predictor.stream(ASK)) == first
    assert first == [
        {"text": "he"},
        {"text": "llo"},
        {"text": "", "finish_reason": "stop"},
        {"text": "", "prompt_tokens": 5, "completion_tokens": 2},
    ]
    assert [asked.connection for asked in server.asked] == [1, 1]
    assert server.asked[0].body["stream_options"] == {"include_usage": True}


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (streams(*HELLO, end=b""), "cut off"),
        (streams(*HELLO, is_cut=True), "cut off"),
        (streams(*HELLO, {"error": {"message": f"no more of {KEY}"}}), r"no more of \*\*\*"),
        (streams(*HELLO, 3), "not an object"),
    ],
)
def test_a_failing_stream_ends_after_its_parts(answer, said):
    with played(answer) as (predictor, _):
        parts = predictor.stream(ASK)
        assert [next(parts)["text"], next(parts)["text"]] == ["he", "llo"]
        with pytest.raises(PredictorError, match=said):
            next(parts)


@pytest.mark.parametrize("unread", [(), (delta(content="o" * 2**22),)])
def test_a_stream_that_is_closed_closes_the_call(unread):
    never = threading.Event()
    with played(streams(*HELLO, *unread, then=never)) as (predictor, server):
        parts = predictor.stream(ASK)
        next(parts)
        parts.close()
        assert server.left.get(timeout=10) == 1
        never.set()


def test_a_cancelled_call_ends_while_the_model_is_silent():
    never, left = threading.Event(), threading.Event()
    context = (RequestContext(data_id=1, is_over=left.is_set),)
    with played(streams(then=never)) as (predictor, server):
        threading.Timer(0.01, left.set).start()
        with pytest.raises(ClosedError):
            next(predictor.stream(ASK, context))
        assert server.left.get(timeout=10) == 1
        with pytest.raises(ClosedError):
            predictor.predict(ASK, context=context)
        never.set()


def floods(handler: Any, asked: Any) -> None:
    """Send lines that keep the connection alive, forever."""
    handler.wfile.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n")
    with contextlib.suppress(OSError):
        while True:
            handler.wfile.write(b": hi\n\n" * 1000)
    handler.server.left.put(handler.number)
    handler.close_connection = True


def test_a_cancelled_call_ends_during_an_endless_answer():
    left = threading.Event()
    context = (RequestContext(data_id=1, is_over=left.is_set),)
    with played(floods) as (predictor, server):
        threading.Timer(0.01, left.set).start()
        with pytest.raises(ClosedError):
            next(predictor.stream(ASK, context))
        with pytest.raises(DeadlineError):
            predictor.predict(ASK, deadline_s=0.1)
        assert {server.left.get(timeout=10) for _ in range(2)} == {1, 2}


def test_invalid_http_is_an_error_of_the_server():
    def garbage(handler: Any, asked: Any) -> None:
        handler.wfile.write(b"HTTP/1.1 none of it\r\n\r\n")

    with (
        played(garbage, retries=0) as (predictor, _),
        pytest.raises(PredictorUnavailableError, match=r"^\[llm\] http://127.*is no HTTP"),
    ):
        predictor.predict(ASK)


def test_an_endless_answer_is_an_error_of_the_server(monkeypatch):
    monkeypatch.setattr(http_calls, "MAX_ANSWER_BYTES", 100_000)
    text = r"is larger than a remote model's answer may be \(100000\)"
    with played(floods) as (predictor, _), pytest.raises(PredictorError, match=text):
        predictor.predict(ASK)


def test_the_deadline_ends_a_call():
    never = threading.Event()
    with played(streams(then=never)) as (predictor, server):
        with pytest.raises(DeadlineError, match=r"\[llm\] http://127"):
            predictor.predict(ASK, deadline_s=0.1)
        assert server.left.get(timeout=10) == 1
        never.set()


# Attempts ---------------------------------------------------------------------


@pytest.mark.parametrize("status", [408, 429, 502, 503, 504])
def test_a_busy_server_is_called_again_after_its_delay(status):
    busy = says({"error": {"message": "busy"}}, status, retry_after="0")
    with played(busy, busy, says(chat("hello"))) as (predictor, server):
        assert predictor.predict(ASK)["text"] == "hello"
    assert len(server.asked) == 3


def test_it_does_not_wait_for_longer_than_there_is_time():
    busy = says({}, 429, retry_after="30")
    refused = pytest.raises(PredictorUnavailableError, match="answered 429")
    with played(busy) as (predictor, server), refused:
        predictor.predict(ASK, deadline_s=20)
    assert len(server.asked) == 1


def test_attempts_are_counted():
    busy = says({}, 503, retry_after="0")
    refused = pytest.raises(PredictorUnavailableError, match="answered 503")
    with played(busy, retries=1) as (predictor, server), refused:
        next(predictor.stream(ASK))
    assert len(server.asked) == 2


@pytest.mark.parametrize(
    ("status", "kind"),
    [(400, InputError), (422, InputError), (404, PredictorError), (500, PredictorError)],
)
def test_other_errors_are_not_retried(status, kind):
    refused = pytest.raises(kind, match=f"answered {status}.*no such")
    with played(says({"error": {"message": "no such"}}, status)) as (predictor, server), refused:
        predictor.predict(ASK)
    assert len(server.asked) == 1


def test_a_reused_connection_that_the_server_closed_is_opened_again():
    def closes(handler: Any, asked: Any) -> None:
        handler.close_connection = True

    with played(says(chat("one")), closes, says(chat("two"))) as (predictor, server):
        assert predictor.predict(ASK)["text"] == "one"
        assert predictor.predict(ASK)["text"] == "two"
    assert [asked.connection for asked in server.asked] == [1, 1, 2]


def test_a_server_that_is_down_is_left_out(caplog):
    caplog.set_level(logging.WARNING)
    with socket.create_server(("127.0.0.1", 0)) as taken, upstream(says(chat("hello"))) as server:
        dead = f"127.0.0.1:{taken.getsockname()[1]}"
        taken.close()
        with asking(dead, server.url) as predictor:
            assert [predictor.predict(ASK)["text"] for _ in range(3)] == ["hello"] * 3
    assert caplog.text.count("is left out") == 1


@pytest.fixture
def without_return(monkeypatch):
    """A server that is left out stays so: its port may be open although it does not answer."""
    monkeypatch.setattr(pool, "FIRST_BACKOFF_S", 1e6)
    monkeypatch.setattr(pool, "MAX_BACKOFF_S", 1e6)


@pytest.mark.usefixtures("without_return")
def test_a_server_that_hangs_is_left_out(caplog, monkeypatch):
    monkeypatch.setattr(pool, "LEAST_SILENCE_S", 0.0)
    caplog.set_level(logging.WARNING)
    never = threading.Event()

    def hangs(handler: Any, asked: Any) -> None:
        never.wait()

    with (
        upstream(says(chat("first")), hangs) as hung,
        upstream(says(chat("hello"))) as server,
        asking(hung.url, server.url) as predictor,
    ):
        assert [predictor.predict(ASK)["text"] for _ in range(2)] == ["first", "hello"]
        for _ in range(pool.MAX_TIMEOUTS):
            with pytest.raises(DeadlineError, match=str(hung.server_address[1])):
                predictor.predict(ASK, deadline_s=0.05)
            assert predictor.predict(ASK)["text"] == "hello"
        assert [predictor.predict(ASK, deadline_s=30)["text"] for _ in range(3)] == ["hello"] * 3
        never.set()
    assert caplog.text.count("is left out: several calls in a row got no answer") == 1


@pytest.mark.usefixtures("without_return")
def test_a_call_without_time_is_not_the_fault_of_the_server(caplog):
    caplog.set_level(logging.WARNING)
    with upstream(says(chat("one"))) as one, upstream(says(chat("two"))) as two:
        with asking(one.url, two.url) as predictor:
            for _ in range(2 * pool.MAX_TIMEOUTS):
                with pytest.raises(DeadlineError):
                    predictor.predict(ASK, deadline_s=0)
            assert [predictor.predict(ASK)["text"] for _ in range(2)] == ["one", "two"]
        assert len(one.asked) == len(two.asked) == 1
    assert "is left out" not in caplog.text


def test_https(monkeypatch, tmp_path):
    authority, stranger = trustme.CA(), trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    stranger.cert_pem.write_to_path(str(tmp_path / "other.pem"))
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    with upstream(streams(*HELLO, delta("stop")), tls=context) as server:
        with asking(server.url) as predictor:
            for _ in range(2):
                assert [part["text"] for part in predictor.stream(ASK)] == ["he", "llo", ""]
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "other.pem"))
        refused = pytest.raises(PredictorUnavailableError, match="certificate")
        with asking(server.url, retries=0) as predictor, refused:
            next(predictor.stream(ASK))
    assert [asked.connection for asked in server.asked] == [1, 1]


# The key ----------------------------------------------------------------------


def test_the_key_is_in_no_error_and_no_log(caplog, tmp_path):
    caplog.set_level(logging.DEBUG)
    file = tmp_path / "key"
    file.write_text(KEY + "\n")
    refuses = says({"error": {"message": f"Incorrect API key: {KEY}"}}, 401)
    config = tmp_path / "config.yml"
    with upstream(refuses) as server:
        config.write_text(
            "rpc_port: 0\nop:\n  llm:\n    client_type: openai\n"
            f"    server_endpoints: ['{server.url}']\n    api_key: ${{file:{file}}}\n"
        )
        from pipeline import PipelineServer, ResponseOp

        served = PipelineServer("svc")
        served.set_response_op(ResponseOp(CallsRemoteModel()))
        served.prepare_server(str(config))
        with served, client_of(served) as client:
            answer = client.predict({"prompt": "a"})
    assert server.asked[0].headers["authorization"] == f"Bearer {KEY}"
    assert "Incorrect API key: ***" in answer.err_msg
    assert KEY not in caplog.text


def test_the_configuration_has_the_options_and_masks_the_key(tmp_path, capsys):
    config = tmp_path / "config.yml"
    config.write_text(
        "rpc_port: 0\nop: {llm: {client_type: openai, server_endpoints: ['http://a/v1'], "
        f"api_key: {KEY}, retries: 3}}}}\n"
    )
    assert not load_config(config).warnings
    jsonschema.validate(yaml.safe_load(config.read_text()), config_schema())
    assert show(["show", str(config)]) == 0
    shown = capsys.readouterr().out
    assert "retries" in shown
    assert KEY not in shown


def test_an_invalid_key_is_not_shown():
    refused = pytest.raises(InitError, match="api_key")
    with refused as raised, asking("http://127.0.0.1:1", api_key=f"{KEY}\nx"):
        pass
    assert KEY not in str(raised.value)
    assert KEY not in repr(raised.value.__cause__)


# Our own servers --------------------------------------------------------------


def settings(url: str, **more: Any) -> dict[str, Any]:
    return {"llm": {"client_type": "openai", "server_endpoints": [url], "api_key": KEY, **more}}


def test_an_op_streams_the_answer_of_another_of_our_servers():
    with openai_server(SaysByWord()) as model:
        url = f"http://127.0.0.1:{model.http_port}/v1"
        with (
            server_for(CallsRemoteModel(), op=settings(url, model_name="echo")) as server,
            client_of(server) as client,
            client.predict_stream({"prompt": "a b c"}) as parts,
        ):
            said = [part["text"] for part in parts]
    assert "".join(said).endswith(" a b c")
    assert len(said) > 3


class Whole(Op):
    """Asks a model elsewhere for the whole answer: `process` is the library's."""

    def preprocess(self, input_dicts: Any) -> Any:
        text = input_dicts["@DAGExecutor"]["prompt"]
        return {"messages": [{"role": "user", "content": text}]}

    def postprocess(self, input_dicts: Any, fetch_data: Any) -> Any:
        return {"text": fetch_data["text"]}


def ask(server: PipelineServer, text: str) -> Any:
    return http(server, "POST", "/svc/prediction", {"key": ["prompt"], "value": [text]})[2]


def test_a_plain_op_answers_at_once():
    with (
        openai_server() as model,
        server_for(
            Whole("llm", [RequestOp()]),
            op=settings(f"http://127.0.0.1:{model.http_port}/v1", model_name="talks"),
        ) as server,
    ):
        assert ask(server, "a b")["value"] == ["a b"]


def test_a_plain_op_disconnects_from_a_silent_server_after_a_cancellation():
    never = threading.Event()
    body = b'{"messages": [{"role": "user", "content": "a"}]}'
    head = b"POST /api/svc HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\n\r\n" % len(body)
    with (
        upstream(streams(then=never)) as model,
        server_for(Op("llm", [RequestOp()]), op=settings(model.url)) as server,
    ):
        with socket.create_connection(("127.0.0.1", server.http_port)) as caller:
            caller.sendall(head + body)
            wait_until(lambda: model.asked)
        assert model.left.get(timeout=10) == 1
        never.set()


class Passes(Op):
    """Passes a chat on to a model elsewhere, part by part."""

    def process(self, feed_batch: Any, *, context: Any) -> Any:
        yield from self.client.stream(feed_batch[0], context)


def test_a_chat_with_tools_passes_through_two_servers():
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
    begun = {"index": 0, "id": "c1", "type": "function", "function": {"name": "f", "arguments": ""}}
    more = {"index": 0, "function": {"arguments": '{"a": 1}'}}
    answer = streams(
        *(delta(content="so "), delta(reasoning="hm"), delta(tool_calls=[begun])),
        *(delta(tool_calls=[more]), delta("tool_calls"), USAGE),
    )
    models = {"models": {"passes": {"kind": "chat", "messages": "messages"}}}
    with (
        upstream(answer) as model,
        server_for(
            Passes("llm", [RequestOp()]), op=settings(model.url), frontends={"openai": models}
        ) as server,
        openai.OpenAI(base_url=f"http://127.0.0.1:{server.http_port}/v1", api_key="k") as client,
    ):
        request = {"model": "passes", "messages": ASK["messages"], "tools": tools}
        done = client.chat.completions.create(**request)
    (choice,) = done.choices
    (call,) = choice.message.tool_calls
    assert (choice.message.content, choice.finish_reason) == ("so ", "tool_calls")
    assert (call.id, call.function.name, call.function.arguments) == ("c1", "f", '{"a": 1}')
    assert (done.usage.prompt_tokens, done.usage.completion_tokens) == (5, 2)
    assert model.asked[0].body["tools"] == tools


def test_tokens_that_were_used_are_counted():
    with (
        upstream(says(chat("hello"))) as model,
        server_for(Whole("llm", [RequestOp()]), op=settings(model.url)) as server,
    ):
        ask(server, "a")
        with urllib.request.urlopen(f"http://127.0.0.1:{server.http_port}/metrics") as page:
            shown = page.read().decode()
    assert 'model_tokens_total{kind="prompt",model="llm",op="llm"} ' in shown


def test_chats_of_several_callers_are_never_one():
    with (
        upstream(says(chat("hello"))) as model,
        server_for(Whole("llm", [RequestOp()]), op=settings(model.url, batch_size=2)) as server,
    ):
        assert "batch_size above 1 is for embeddings" in ask(server, "a")["err_msg"]
    assert not model.asked
