"""The same over gRPC: `compare_all` asks the genuine Triton and ours, for `beside`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import grpc
import grpc_questions as asks
from google.protobuf.json_format import MessageToDict

from pipeline.proto import inference_v2_pb2 as v2

WAIT_S = 30.0
_SERVICE = "/inference.GRPCInferenceService/"
_ID = re.compile(r"\[request id: [^\]]*\] ")
_FOLDER = re.compile(r"/\S*/(\w+/\d+/model\.py)")
_SHOWN = 300
# What we refuse, and Triton passes over.
_STRICTER = ("raw contents", "expects 'UINT64'", "parameter", "must be", "expected")


class Reply(NamedTuple):
    """A call's end: its code, the text of its error, and its answers."""

    code: str
    text: str
    answers: list[Any]


def ask(channel: grpc.Channel, question: asks.Question) -> Reply:
    path = _SERVICE + question.method
    forms = (lambda message: message.SerializeToString(), question.answer.FromString)
    answers: list[Any] = []
    try:
        if question.streams:
            call = channel.stream_stream(path, *forms)
            answers.extend(call(iter(question.messages), timeout=WAIT_S))
        else:
            answers.append(channel.unary_unary(path, *forms)(question.messages[0], timeout=WAIT_S))
    except grpc.RpcError as error:
        return Reply(error.code().name, plain(error.details() or ""), answers)
    return Reply("OK", "", [plain(MessageToDict(answer)) for answer in answers])


def plain(answer: Any) -> Any:
    """Return an answer without parts that may differ: the order of outputs, times, folders."""
    if isinstance(answer, dict):
        fields = {
            key: plain(field)
            for key, field in answer.items()
            if key not in ("ns", "lastInference", "memoryUsage")
        }
        if "extensions" in fields:
            fields = {"extensions": sorted(fields["extensions"])}
        return _by_names(fields)
    if isinstance(answer, list):
        return [plain(element) for element in answer]
    return _FOLDER.sub(r"\1", _ID.sub("", answer)) if isinstance(answer, str) else answer


def _by_names(fields: dict[str, Any]) -> dict[str, Any]:
    """Sort outputs, with their raw contents, and models by name."""
    outputs, raw = fields.get("outputs"), fields.get("rawOutputContents")
    if isinstance(outputs, list) and isinstance(raw, list):
        pairs = sorted(zip(outputs, raw, strict=False), key=lambda pair: pair[0]["name"])
        fields = {
            **fields,
            "outputs": [a for a, _ in pairs],
            "rawOutputContents": [b for _, b in pairs],
        }
    for key in ("models", "modelStats"):
        if isinstance(fields.get(key), list):
            fields = {**fields, key: sorted(fields[key], key=str)}
    return fields


def is_same(question: asks.Question, theirs: Reply, ours: Reply) -> bool:
    """Return whether answers are equal, or differ as docs/triton_differences.md allows."""
    if theirs == ours or is_meant(question, theirs, ours):
        return True
    their_text, our_text = error_of(theirs), error_of(ours)
    if (
        their_text is None or our_text is None
    ):  # we refuse what Triton passes over, and nothing else
        return (
            their_text is None
            and our_text is not None
            and any(word in our_text for word in _STRICTER)
        )
    # Both are right where several things are wrong; errors within a stream have no code.
    is_wrong_too = ours.code in ("INVALID_ARGUMENT", "OK")
    return (their_text.rstrip(". ") in our_text and ours.code == theirs.code) or is_wrong_too


def is_meant(question: asks.Question, theirs: Reply, ours: Reply) -> bool:
    """Return whether descriptions differ only where they are meant to."""
    if not theirs.code == ours.code == "OK":
        is_cuda = question.method == "CudaSharedMemoryUnregister"
        return is_cuda and ours.code == "INVALID_ARGUMENT"
    if question.method == "ServerMetadata":
        return set(ours.answers[0]["extensions"]) <= set(theirs.answers[0]["extensions"])
    keys = {"RepositoryIndex": "models", "ModelStatistics": "modelStats"}
    if question.method in keys and question.name.startswith(question.method):
        names = [
            [{**entry, "reason": ""} if "state" in entry else (entry["name"], entry.get("version"))]
            for reply in (theirs, ours)
            for entry in [*reply.answers[0].get(keys[question.method], ())]
        ]
        middle = len(names) // 2
        return names[:middle] == names[middle:]
    return False


def error_of(reply: Reply) -> str | None:
    """Return the text of an error, of the call or the last of its stream; None: it has none."""
    if reply.code != "OK":
        return reply.text
    last = reply.answers[-1] if reply.answers else {}
    text = last.get("errorMessage")
    return text if isinstance(text, str) else None


def compare(channels: list[grpc.Channel], asked: Iterator[asks.Question]) -> int:
    """Ask both servers; return how many answers differ that must not."""
    wrong = count = 0
    for question in asked:
        count += 1
        theirs, ours = (ask(channel, question) for channel in channels)
        if not is_same(question, theirs, ours):
            wrong += 1
            about = " ".join(str(question.messages[0]).split())
            print(f"DIFFERENT {question.name}: {about[:_SHOWN]}")
            print(f"  Triton {str(theirs)[:_SHOWN]}\n  ours   {str(ours)[:_SHOWN]}", flush=True)
    print(f"gRPC: {count} requests, {wrong} answers differ", flush=True)
    return wrong


def compare_counts(channels: list[grpc.Channel], models: list[str]) -> int:
    """Compare the statistics of models, each counter; returns how many differ."""
    wrong = 0
    for model in models:
        question = asks.Question(model, "ModelStatistics", v2.ModelStatisticsResponse)
        question.messages.append(v2.ModelStatisticsRequest(name=model))
        theirs, ours = (ask(channel, question) for channel in channels)
        if theirs != ours:
            wrong += 1
            print(f"DIFFERENT statistics of {model}:\n  Triton {theirs}\n  ours   {ours}")
    print(f"gRPC: statistics: {wrong} models differ", flush=True)
    return wrong


def compare_all(
    ports: tuple[int, int], models: list[str], counted: list[str], seed: int, count: int
) -> int:
    """Ask all there is over gRPC; return how much differs that must not."""
    channels = [grpc.insecure_channel(f"127.0.0.1:{port}") for port in ports]
    try:
        wrong = compare(channels, asks.good())
        wrong += compare_counts(channels, counted)
        wrong += compare(channels, asks.sequences())
        wrong += compare(channels, asks.wrong(seed, count))
        return wrong + compare(channels, asks.descriptions(models))
    finally:
        for channel in channels:
            channel.close()
