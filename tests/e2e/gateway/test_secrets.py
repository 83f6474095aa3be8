"""Callers' secrets are in no log, audit, metrics or answer of a real server."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, utils

from pipeline import Op, PipelineServer, RequestOp, ResponseOp
from pipeline.proto import inference_v2_pb2 as v2

SERVICE = "/inference.GRPCInferenceService"
BODY = json.dumps({"key": ["x"], "value": ["1"]}).encode()
GOOD, WRONG, ADMIN = "good-token-7d1f", "wrong-token-93ab", "admin-token-51ce"
QUERY, PASSWORD = "query-secret-4e2d", "basic-secret-0c9b"
STORE, UPSTREAM = "store-secret-77aa", "upstream-secret-12ef"


class Echo(Op):
    def preprocess(self, input_dicts):
        return dict(input_dicts["@DAGExecutor"])


class Signer:
    """Signs tokens with a key of its own."""

    def __init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())

    def keys(self) -> str:
        numbers = self._key.public_key().public_numbers()
        x, y = (_text(number.to_bytes(32, "big")) for number in (numbers.x, numbers.y))
        key = {"kty": "EC", "crv": "P-256", "kid": "one", "use": "sig", "x": x, "y": y}
        return json.dumps({"keys": [key]})

    def sign(self, expires_s: float) -> str:
        head = {"alg": "ES256", "kid": "one"}
        claims = {"iss": "https://issuer", "aud": "svc", "sub": "carol", "roles": ["infer"]}
        claims["exp"] = int(time.time() + expires_s)
        signed = ".".join(_text(json.dumps(item).encode()) for item in (head, claims))
        der = self._key.sign(signed.encode(), ec.ECDSA(hashes.SHA256()))
        r, s = utils.decode_dss_signature(der)
        return f"{signed}.{_text(r.to_bytes(32, 'big') + s.to_bytes(32, 'big'))}"


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def digest(token: str) -> str:
    return "sha256:" + hashlib.sha256(token.encode()).hexdigest()


class Secured:
    """A server whose callers show tokens, and everything that it writes."""

    def __init__(self, server: PipelineServer, folder: Path, signer: Signer) -> None:
        self.server, self.folder = server, folder
        self.tokens = [GOOD, WRONG, ADMIN, signer.sign(60), signer.sign(-60)]

    def ask(self, path: str, body: bytes | None = BODY, **headers: str) -> tuple[int, str]:
        said = {name.replace("_", "-"): value for name, value in headers.items()}
        url = f"http://127.0.0.1:{self.server.http_port}{path}"
        try:
            with urllib.request.urlopen(
                urllib.request.Request(url, body, said), timeout=30
            ) as result:
                return result.status, result.read().decode() + str(result.headers)
        except urllib.error.HTTPError as refused:
            return refused.code, refused.read().decode() + str(refused.headers)

    def call(self, method: str, *metadata: tuple[str, str]) -> str:
        with grpc.insecure_channel(f"127.0.0.1:{self.server.rpc_port}") as channel:
            ask = channel.unary_unary(f"{SERVICE}/{method}")
            try:
                ask(v2.ServerMetadataRequest().SerializeToString(), metadata=metadata, timeout=30)
            except grpc.RpcError as refused:
                return str(refused)
        return ""

    def written(self) -> str:
        files = [path for path in self.folder.rglob("*") if path.is_file()]
        kept = [file for file in files if file.suffix in (".log", ".wf", ".jsonl")]
        assert any(item.name == "audit.jsonl" for item in kept)
        return "".join(item.read_text() for item in kept)


@pytest.fixture(params=["text", "json"])
def secured(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Secured]:
    monkeypatch.setenv("SERVING_LOG_PATH", str(tmp_path / "logs"))
    signer = Signer()
    (tmp_path / "keys.json").write_text(signer.keys())
    callers = [
        {"name": "alice", "roles": ["infer"], "tokens": [digest(GOOD)]},
        {"name": "root", "roles": ["infer", "observe", "admin"], "tokens": [digest(ADMIN)]},
    ]
    (tmp_path / "callers.json").write_text(json.dumps({"callers": callers}))
    jwt = {"jwks_file": str(tmp_path / "keys.json"), "issuer": "https://issuer", "audience": "svc"}
    access = {
        "callers_file": str(tmp_path / "callers.json"),
        "anonymous": [],
        "jwt": jwt,
        "audit_file": str(tmp_path / "audit.jsonl"),
    }
    server = PipelineServer("svc")
    server.set_response_op(ResponseOp(Echo("echo", RequestOp())))
    log = {"request_sample": 1, "level": "DEBUG", "format": request.param}
    ports = {"rpc_port": 0, "http_port": 0, "edge": "gateway"}
    server.prepare_server(yml_dict={**ports, "access": access, "log": log})
    with server as running:
        yield Secured(running, tmp_path, signer)


def test_no_secret_is_written_or_answered(secured: Secured) -> None:
    basic = base64.b64encode(f"user:{PASSWORD}".encode()).decode()
    answers = [secured.ask("/svc/prediction", Authorization=f"Basic {basic}")]
    for token in secured.tokens:
        for path in ("/svc/prediction", "/v2/repository/models/svc/load", "/api/svc"):
            query = f"?api_key={QUERY}&token={token}"
            answers.append(secured.ask(path + query, Authorization=f"Bearer {token}"))
            answers.append(secured.ask(path + query, X_Api_Key=token))
        answers.append((0, secured.call("ServerMetadata", ("authorization", f"Bearer {token}"))))
        answers.append((0, secured.call("RepositoryIndex", ("x-api-key", token))))
    assert {status for status, _ in answers} >= {200, 401, 403}
    answers.append(secured.ask("/metrics", None, X_Api_Key=ADMIN))
    answers.append(secured.ask("/status.json", None, X_Api_Key=ADMIN))
    assert [status for status, _ in answers[-2:]] == [200, 200]
    _wait_for(lambda: secured.written().count("/svc/prediction") >= 2 * len(secured.tokens))
    text = secured.written()
    secrets = [*secured.tokens, *map(digest, secured.tokens), QUERY, PASSWORD, basic]
    for secret in [*secrets, *(token.rpartition(".")[2] for token in secured.tokens)]:
        assert secret not in text
        assert not [answer for _, answer in answers if secret in answer]
    for name in ("alice", "root", "jwt:carol"):
        assert name in text


class Upstream(Op):
    def preprocess(self, input_dicts):
        return {"prompt": str(input_dicts["@DAGExecutor"]["x"])}


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_no_secret_of_the_server_is_written_or_answered(tmp_path, monkeypatch, log_format) -> None:
    """Neither a store nor a model elsewhere can be reached: both errors name their servers."""
    monkeypatch.setenv("SERVING_LOG_PATH", str(tmp_path / "logs"))
    server = PipelineServer("svc")
    server.set_response_op(ResponseOp(Upstream("upstream", RequestOp())))
    traces = {"file": str(tmp_path / "traces.jsonl"), "level": ["TIMESTAMPS", "TENSORS"], "rate": 1}
    remote = {"client_type": "openai", "server_endpoints": ["127.0.0.1:1"], "api_key": UPSTREAM}
    server.prepare_server(
        yml_dict={
            "rpc_port": 0,
            "http_port": 0,
            "request_traces": traces,
            "payload_store": f"redis://user:{STORE}@127.0.0.1:1/0",
            "log": {"request_sample": 1, "level": "DEBUG", "format": log_format},
            "op": {"upstream": {**remote, "local_service_conf": {"fetch_list": ["text"]}}},
        }
    )
    reference = f"pipeline-stored:{'0' * 32}"
    bodies = [json.dumps({"key": ["x"], "value": [value]}).encode() for value in ("1", reference)]
    with server as running:
        asked = Secured(running, tmp_path, Signer())
        answers = [asked.ask("/svc/prediction", body)[1] for body in bodies]
        assert not [answer for answer in answers if '"err_no":0' in answer]
        answers += [asked.ask(path, None)[1] for path in ("/metrics", "/status.json", "/")]
        texts = [path.read_text() for path in tmp_path.rglob("*") if path.is_file()]
    texts += [path.read_text() for path in tmp_path.rglob("*") if path.is_file()]
    assert "payload_store: " in "".join(answers)
    assert any("127.0.0.1:1" in text for text in texts)
    for secret in (STORE, UPSTREAM):
        assert not [text for text in (*answers, *texts) if secret in text]


def _wait_for(is_met) -> None:
    end_s = time.monotonic() + 30
    while not is_met() and time.monotonic() < end_s:
        with contextlib.suppress(OSError):
            time.sleep(0.02)
    assert is_met()
