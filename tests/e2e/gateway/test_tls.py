"""TLS of a real server's two ports, as scanners look at it: versions, ciphers, certificates."""

from __future__ import annotations

import contextlib
import datetime
import shutil
import socket
import ssl
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest
import trustme
from doubles import http, server_for, wait_until

from pipeline import Op, PipelineServer, RequestOp
from pipeline.errors import InitError

pytestmark = [pytest.mark.usefixtures("gateway_binary")]

HTTP, GRPC = "http/1.1", "h2"
PORTS = pytest.mark.parametrize("protocol", [HTTP, GRPC])
GET = b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n"
TAKEN = {
    "ECDHE-RSA-AES128-GCM-SHA256", "ECDHE-RSA-AES256-GCM-SHA384", "ECDHE-RSA-CHACHA20-POLY1305",
}  # fmt: skip
LONG_AGO = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)


class Files:
    """The files of a server's TLS, and the authorities behind them."""

    def __init__(self, folder: Path) -> None:
        self.authority, self.callers = trustme.CA(), trustme.CA()
        self.certificate, self.key = folder / "server.crt", folder / "server.key"
        self.client_ca = folder / "callers.crt"
        self.renew()
        self.callers.cert_pem.write_to_path(str(self.client_ca))

    def renew(self) -> bytes:
        """Write another certificate of the server's; return it."""
        issued = self.authority.issue_cert("localhost", key_type=trustme.KeyType.RSA)
        for path, blobs in (
            (self.key, [issued.private_key_pem]), (self.certificate, issued.cert_chain_pems),
        ):  # fmt: skip
            path.with_suffix(".new").write_bytes(b"".join(blob.bytes() for blob in blobs))
            path.with_suffix(".new").replace(path)
        return ssl.PEM_cert_to_DER_cert(issued.cert_chain_pems[0].bytes().decode())

    def config(self, *, has_callers: bool = False) -> dict[str, str]:
        """Return `tls` of config.yml."""
        more = {"client_ca": str(self.client_ca)} if has_callers else {}
        return {"certificate": str(self.certificate), "key": str(self.key), **more}


class Secured:
    """A server that runs, and its files."""

    def __init__(self, server: PipelineServer, files: Files) -> None:
        self.files = files
        self._ports = {HTTP: server.http_port, GRPC: server.rpc_port}

    def context(self, protocol: str = HTTP) -> ssl.SSLContext:
        """Return how a caller who knows the authority speaks TLS."""
        context = ssl.create_default_context()
        self.files.authority.configure_trust(context)
        context.set_alpn_protocols([protocol])
        return context

    @contextlib.contextmanager
    def speaking(
        self, context: ssl.SSLContext, protocol: str = HTTP, session: ssl.SSLSession | None = None
    ) -> Iterator[ssl.SSLSocket]:
        """Shake hands with the port of a protocol."""
        port = self._ports[protocol]
        with (
            socket.create_connection(("127.0.0.1", port), 30) as raw,
            context.wrap_socket(raw, server_hostname="localhost", session=session) as secure,
        ):
            yield secure

    def target(self, protocol: str = GRPC) -> str:
        return f"localhost:{self._ports[protocol]}"


def ask(secure: ssl.SSLSocket) -> bytes:
    """Ask for health over HTTP/1.1; TLS 1.3 says only now that a certificate was refused."""
    secure.sendall(GET)
    return secure.recv(65536)


def is_refused(
    server: Secured,
    context: ssl.SSLContext,
    protocol: str = HTTP,
    session: ssl.SSLSession | None = None,
) -> bool:
    """Return whether a caller is hung up on, in the handshake or behind it."""
    try:
        with server.speaking(context, protocol, session) as secure:
            return not ask(secure)
    except (ssl.SSLError, ConnectionError):
        return True


@contextlib.contextmanager
def secured(folder: Path, *, has_callers: bool = False) -> Iterator[Secured]:
    files = Files(folder)
    op = Op("same", [RequestOp()])
    tls = files.config(has_callers=has_callers)
    with server_for(op, edge="gateway", http_port=0, rpc_port=0, tls=tls) as server:
        yield Secured(server, files)


@pytest.fixture(scope="module")
def server(tmp_path_factory, gateway_binary, module_logs) -> Iterator[Secured]:
    with secured(tmp_path_factory.mktemp("tls")) as result:
        yield result


@pytest.fixture(scope="module")
def mutual(tmp_path_factory, gateway_binary, module_logs) -> Iterator[Secured]:
    """A server whose callers need a certificate."""
    with secured(tmp_path_factory.mktemp("tls"), has_callers=True) as result:
        yield result


# Versions and ciphers -----------------------------------------------------------------------


@PORTS
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_old_versions_are_refused(server, protocol, version):
    context = server.context(protocol)
    context.set_ciphers("ALL:@SECLEVEL=0")
    context.minimum_version = context.maximum_version = version
    with (
        pytest.raises(ssl.SSLError, match="PROTOCOL_VERSION"),
        server.speaking(context, protocol),
    ):
        pass


@PORTS
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_new_versions_are_accepted(server, protocol, version):
    context = server.context(protocol)
    context.minimum_version = context.maximum_version = version
    with server.speaking(context, protocol) as secure:
        assert secure.version() == version.name.replace("v1_", "v1.")
        assert secure.selected_alpn_protocol() == protocol
        assert secure.compression() is None


@PORTS
def test_old_ciphers_are_refused(server, protocol):
    context = server.context(protocol)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers("ALL:COMPLEMENTOFALL:@SECLEVEL=0")
    names = {cipher["name"] for cipher in context.get_ciphers()} - TAKEN
    assert {"AES128-SHA", "ECDHE-RSA-AES128-SHA", "AES128-GCM-SHA256"} <= names
    context.set_ciphers(":".join([*names, "@SECLEVEL=0"]))
    with (
        pytest.raises(ssl.SSLError, match="HANDSHAKE_FAILURE"),
        server.speaking(context, protocol),
    ):
        pass


@pytest.mark.parametrize("name", sorted(TAKEN))
def test_good_ciphers_are_accepted(server, name):
    context = server.context()
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers(name)
    with server.speaking(context) as secure:
        assert secure.cipher()[0] == name


@PORTS
def test_a_protocol_that_is_not_spoken_is_refused(server, protocol):
    with (
        pytest.raises(ssl.SSLError, match=r"(?i)no.application.protocol"),
        server.speaking(server.context("spdy/3"), protocol),
    ):
        pass


def test_a_caller_may_not_renegotiate(server):
    program = shutil.which("openssl")
    if program is None:
        pytest.skip("needs openssl")
    command = [program, "s_client", "-tls1_2", "-connect", server.target(HTTP)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as caller:
        assert caller.stdin is not None
        assert caller.stdout is not None
        caller.stdin.write(b"R\n")
        caller.stdin.flush()
        output = caller.stdout.read()  # up to its end, which is the server's doing
    assert b"RENEGOTIATING" in output
    assert b"alert unexpected message" in output or b"no renegotiation" in output


# The server's certificate -------------------------------------------------------------------


def test_clients_of_another_server_reject_the_certificate(server):
    context = server.context()
    port = server._ports[HTTP]
    with (
        socket.create_connection(("127.0.0.1", port), 30) as raw,
        pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"),
    ):
        context.wrap_socket(raw, server_hostname="other.example")
    with (
        pytest.raises(ssl.SSLCertVerificationError, match="unable to get local issuer"),
        server.speaking(ssl.create_default_context()),
    ):
        pass


@pytest.mark.parametrize("fault", ["order", "key", "none"])
def test_files_that_do_not_fit_are_an_error_at_the_start(tmp_path, fault):
    files = Files(tmp_path)
    issued = files.authority.create_child_ca().issue_cert("localhost")
    chain = [blob.bytes() for blob in issued.cert_chain_pems]
    if fault == "order":
        files.key.write_bytes(issued.private_key_pem.bytes())
        files.certificate.write_bytes(b"".join(reversed(chain)))
    elif fault == "key":
        files.certificate.write_bytes(b"".join(chain))
    else:
        files.certificate.write_bytes(b"")
    op = Op("same", [RequestOp()])
    with (
        pytest.raises(InitError, match="tls-cert"),
        server_for(op, edge="gateway", http_port=0, rpc_port=0, tls=files.config()),
    ):
        pass


def test_an_intermediate_authority_is_sent_along(tmp_path):
    files = Files(tmp_path)
    issued = files.authority.create_child_ca().issue_cert("localhost")
    files.key.write_bytes(issued.private_key_pem.bytes())
    files.certificate.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
    op = Op("same", [RequestOp()])
    with server_for(op, edge="gateway", http_port=0, rpc_port=0, tls=files.config()) as running:
        result = Secured(running, files)
        for protocol in (HTTP, GRPC):
            with result.speaking(result.context(protocol), protocol):
                pass


def test_a_renewed_certificate_is_served_and_connections_continue(tmp_path):
    with secured(tmp_path) as server, server.speaking(server.context()) as old:
        assert b"200 OK" in ask(old)
        session, before = old.session, old.getpeercert(binary_form=True)
        after = server.files.renew()
        assert after != before

        def served(protocol: str) -> bytes | None:
            with server.speaking(server.context(protocol), protocol) as secure:
                return secure.getpeercert(binary_form=True)

        for protocol in (HTTP, GRPC):
            wait_until(lambda protocol=protocol: served(protocol) == after)
        assert b"200 OK" in ask(old)
        context = old.context
        with server.speaking(context, session=session) as again:  # resumed or not
            assert b"200 OK" in ask(again)


# Callers' certificates ----------------------------------------------------------------------


def _no_certificate(files: Files, context: ssl.SSLContext) -> None:
    """No certificate at all."""


def _unknown(files: Files, context: ssl.SSLContext) -> None:
    trustme.CA().issue_cert("caller").configure_cert(context)


def _of_the_servers_authority(files: Files, context: ssl.SSLContext) -> None:
    files.authority.issue_cert("caller").configure_cert(context)


def _expired(files: Files, context: ssl.SSLContext) -> None:
    issued = files.callers.issue_cert(
        "caller", not_before=LONG_AGO, not_after=LONG_AGO + datetime.timedelta(days=1)
    )
    issued.configure_cert(context)


def _not_yet(files: Files, context: ssl.SSLContext) -> None:
    now = datetime.datetime.now(datetime.UTC)
    issued = files.callers.issue_cert(
        "caller",
        not_before=now + datetime.timedelta(days=1),
        not_after=now + datetime.timedelta(days=2),
    )
    issued.configure_cert(context)


@PORTS
@pytest.mark.parametrize(
    "show", [_no_certificate, _unknown, _of_the_servers_authority, _expired, _not_yet]
)
def test_callers_without_a_good_certificate_are_refused(
    mutual, protocol, show: Callable[[Files, ssl.SSLContext], None]
):
    context = mutual.context(protocol)
    show(mutual.files, context)
    assert is_refused(mutual, context, protocol)


def test_callers_with_a_good_certificate_are_answered(mutual):
    context = mutual.context()
    mutual.files.callers.issue_cert("caller").configure_cert(context)
    with mutual.speaking(context) as secure:
        assert b"200 OK" in ask(secure)
    issued = mutual.files.callers.issue_cert("caller")
    credentials = grpc.ssl_channel_credentials(
        mutual.files.authority.cert_pem.bytes(),
        issued.private_key_pem.bytes(),
        issued.cert_chain_pems[0].bytes(),
    )
    with grpc.secure_channel(mutual.target(), credentials) as channel:
        live = channel.unary_unary("/inference.GRPCInferenceService/ServerLive")
        assert live(b"", timeout=30) == b"\x08\x01"


def test_clients_of_a_removed_authority_are_refused_even_with_a_session(tmp_path):
    with secured(tmp_path, has_callers=True) as server:
        context = server.context()
        server.files.callers.issue_cert("caller").configure_cert(context)
        with server.speaking(context) as secure:
            assert b"200 OK" in ask(secure)
            session = secure.session
        with server.speaking(context, session=session) as secure:
            assert b"200 OK" in ask(secure)
            assert secure.session_reused
        others = trustme.CA()
        others.cert_pem.write_to_path(str(server.files.client_ca))
        wait_until(lambda: is_refused(server, context))
        assert is_refused(server, context, session=session)


# gRPC alone ---------------------------------------------------------------------------------


def test_of_grpc_alone(tmp_path):
    files = Files(tmp_path)
    tls = {**files.config(), "grpc_only": True}
    ways = {"edge": "gateway", "http_server": "embedded", "http_port": 0, "rpc_port": 0}
    with server_for(Op("same", [RequestOp()]), **ways, tls=tls) as server:
        assert http(server, "GET", "/health/live")[0] == 200
        credentials = grpc.ssl_channel_credentials(files.authority.cert_pem.bytes())
        target = f"localhost:{server.rpc_port}"
        with grpc.secure_channel(target, credentials) as channel:
            live = channel.unary_unary("/inference.GRPCInferenceService/ServerLive")
            assert live(b"", timeout=30) == b"\x08\x01"
        with grpc.insecure_channel(target) as channel:
            live = channel.unary_unary("/inference.GRPCInferenceService/ServerLive")
            with pytest.raises(grpc.RpcError):
                live(b"", timeout=30)
