"""Certificates and keys that expire, are replaced, are revoked, or are somebody else's."""

from __future__ import annotations

import base64
import datetime
import json
import ssl
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import trustme
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from benchmarks.faults.clients import CLIENTS, Caller
from benchmarks.faults.fault import Fault, repeat
from benchmarks.process import Service

_NOTICED_S = 3.0  # the gateway looks at its files each second; this is more
_SHORT_S = 4.0
_NAMED = {"iss": "https://id.test", "aud": "faulted"}


def _write(path: Path, text: str | bytes) -> None:
    new = path.with_suffix(".new")
    new.write_bytes(text if isinstance(text, bytes) else text.encode())
    new.replace(path)


class Certificates:
    """The server's certificate; clients with even numbers keep their connections, others do not."""

    _folder: Path
    _authority: trustme.CA

    def keys(self, stack: ExitStack) -> Mapping[str, Any]:
        self._folder = Path(stack.enter_context(TemporaryDirectory(prefix="tls-")))
        self._authority = trustme.CA()
        self._renew()
        certificate, key = self._folder / "server.crt", self._folder / "server.key"
        return {"tls": {"certificate": str(certificate), "key": str(key)}}

    def caller(self, client: int) -> Caller:
        return Caller(self._context(), {"Connection": "close"} if client % 2 else {})

    def replaced(self, service: Service) -> None:
        self._renew()

    def expires(self, service: Service) -> None:
        """Let a certificate expire while it is used, and replace it a second later."""
        ends = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=_SHORT_S)
        self._renew(ends)
        time.sleep(_SHORT_S + 1)
        self._renew()
        time.sleep(_NOTICED_S)

    def _renew(self, ends: datetime.datetime | None = None) -> None:
        issued = self._authority.issue_cert("localhost", not_after=ends)
        _write(self._folder / "server.key", issued.private_key_pem.bytes())
        chain = b"".join(blob.bytes() for blob in issued.cert_chain_pems)
        _write(self._folder / "server.crt", chain)

    def _context(self) -> ssl.SSLContext:
        context = ssl.create_default_context()
        self._authority.configure_trust(context)
        return context


class Callers(Certificates):
    """Certificates of callers: a quarter are of a foreign authority, a quarter are revoked."""

    _issuer: trustme.CA
    _callers: dict[int, Caller]

    def keys(self, stack: ExitStack) -> Mapping[str, Any]:
        (tls,) = super().keys(stack).values()
        self._issuer, self._callers = trustme.CA(), {}
        _write(self._folder / "callers.crt", self._issuer.cert_pem.bytes())
        self._allow({"first", "second"})
        access = {"callers_file": str(self._folder / "callers.json"), "anonymous": []}
        return {"tls": {**tls, "client_ca": str(self._folder / "callers.crt")}, "access": access}

    def caller(self, client: int) -> Caller:
        if client not in self._callers:
            is_foreign, is_later_revoked = client % 4 == 1, client % 4 == 2
            issuer = trustme.CA() if is_foreign else self._issuer
            made = Caller(self._context(), is_known=not is_foreign)
            name = "second" if is_later_revoked else "first"
            assert made.context is not None
            issuer.issue_cert(f"{name}.test").configure_cert(made.context)
            self._callers[client] = made
        return self._callers[client]

    def revoked(self, service: Service) -> None:
        time.sleep(1)
        revoked = [self.caller(client) for client in range(2, CLIENTS, 4)]
        for caller in revoked:
            caller.is_known = None
        self._allow({"first"})
        time.sleep(_NOTICED_S)
        for caller in revoked:
            caller.is_known = False
        time.sleep(3)

    def _allow(self, names: set[str]) -> None:
        callers = [
            {"name": name, "roles": ["infer"], "certificates": [f"{name}.test"]}
            for name in sorted(names)
        ]
        _write(self._folder / "callers.json", json.dumps({"callers": callers}))


class SigningKeys:
    """Keys of an identity provider; tokens of two of them are in use while the first goes."""

    _folder: Path
    _keys: dict[str, Ed25519PrivateKey]
    _callers: dict[int, Caller]

    def keys(self, stack: ExitStack) -> Mapping[str, Any]:
        self._folder = Path(stack.enter_context(TemporaryDirectory(prefix="jwks-")))
        self._keys = {name: Ed25519PrivateKey.generate() for name in ("old", "new")}
        self._callers = {}
        self._publish("old")
        named = {"issuer": _NAMED["iss"], "audience": _NAMED["aud"]}
        jwt = {"jwks_file": str(self._folder / "keys.json"), **named}
        return {"access": {"anonymous": [], "jwt": jwt}}

    def caller(self, client: int) -> Caller:
        if client not in self._callers:
            self._callers[client] = Caller(headers=self._headers("old", client))
        return self._callers[client]

    def rotated(self, service: Service) -> None:
        """Publish both keys, change three quarters of the tokens, then withdraw the old key."""
        time.sleep(1)
        self._publish("old", "new")
        time.sleep(_NOTICED_S)
        for client in range(CLIENTS):
            if client % 4 != 1:
                self._callers[client].headers = self._headers("new", client)
        time.sleep(2)
        late = [self._callers[client] for client in range(1, CLIENTS, 4)]
        for caller in late:
            caller.is_known = None
        self._publish("new")
        time.sleep(_NOTICED_S)
        for caller in late:
            caller.is_known = False
        time.sleep(2)

    def _publish(self, *names: str) -> None:
        published = [
            {"kty": "OKP", "crv": "Ed25519", "alg": "EdDSA", "kid": name, "x": _text(raw)}
            for name in names
            if (raw := self._keys[name].public_key().public_bytes_raw())
        ]
        _write(self._folder / "keys.json", json.dumps({"keys": published}))

    def _headers(self, key: str, client: int) -> Mapping[str, str]:
        header = {"alg": "EdDSA", "kid": key}
        claims: dict[str, Any] = {**_NAMED, "sub": f"client-{client}", "roles": ["infer"]}
        claims["exp"] = int(time.time()) + 3600
        signed = f"{_text(json.dumps(header))}.{_text(json.dumps(claims))}"
        token = f"{signed}.{_text(self._keys[key].sign(signed.encode()))}"
        return {"Authorization": f"Bearer {token}"}


def _text(part: str | bytes) -> str:
    blob = part.encode() if isinstance(part, str) else part
    return base64.urlsafe_b64encode(blob).rstrip(b"=").decode()


_SERVER, _CALLERS, _KEYS = Certificates(), Callers(), SigningKeys()
FAULTS = (
    Fault(
        "a certificate is replaced, 3 times",
        False, repeat(3, _SERVER.replaced), _SERVER.keys, _SERVER.caller,
    ),
    Fault(
        "a certificate expires, and is replaced a second later",
        True, _SERVER.expires, _SERVER.keys, _SERVER.caller,
    ),
    Fault(
        "mTLS: foreign certificates, and revoked ones",
        False, _CALLERS.revoked, _CALLERS.keys, _CALLERS.caller,
    ),
    Fault(
        "the keys of signed tokens rotate, both in use",
        False, _KEYS.rotated, _KEYS.keys, _KEYS.caller,
    ),
)  # fmt: skip
