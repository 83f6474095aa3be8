"""`pipeline callers`: manages the file of callers, and makes their tokens."""

from __future__ import annotations

import argparse
import hashlib
import os
import secrets
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec

from pipeline.cli.parsing import command_parser, fails
from pipeline.config.access import ROLES, CallerEntry, CallersFile
from pipeline.errors import ConfigError

_TOKEN_BYTES = 32


def callers(arguments: Sequence[str]) -> int:
    """Run `callers add|list|remove`; return the exit status."""
    options = callers_parser().parse_args(list(arguments))
    path = Path(options.file)
    try:
        document = read_callers(path)
        status: int = options.work(options, document, path)
    except (ConfigError, OSError) as error:
        return fails("callers", str(error))
    return status


def callers_parser() -> argparse.ArgumentParser:
    parser = command_parser(
        "callers",
        "Keep the file of callers that `access.callers_file` names. The gateway reads it again "
        "whenever it changes. Tokens are not in it: only their digests are.",
        "pipeline callers add alice --roles infer,observe",
    )
    parser.add_argument("--file", default="callers.json", help="default: callers.json")
    commands = parser.add_subparsers(required=True, metavar="add|list|remove")
    add = commands.add_parser("add", help="add a caller, or another token of one; prints the token")
    add.add_argument("name")
    add.add_argument("--roles", help=f"of {','.join(ROLES)}, with commas; default: infer")
    add.add_argument("--certificate", help="name in its certificate, instead of a token")
    add.set_defaults(work=_add)
    show = commands.add_parser("list", help="list the callers and their roles")
    show.set_defaults(work=_list)
    remove = commands.add_parser("remove", help="remove a caller with all of its tokens")
    remove.add_argument("name")
    remove.set_defaults(work=_remove)
    return parser


def read_callers(path: Path) -> CallersFile:
    """Return the content of a file of callers; empty if the file does not exist.

    Raises:
        ConfigError: it is not such a file.
        OSError: it cannot be read.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return CallersFile()
    try:
        return msgspec.json.decode(data, type=CallersFile)
    except msgspec.DecodeError as error:
        raise ConfigError(f"{path}: {error}") from None


def write_callers(path: Path, document: CallersFile) -> None:
    """Write the file of callers atomically, readable only by this user."""
    data = msgspec.json.format(msgspec.json.encode(document), indent=2) + b" "
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def digest_of(token: str) -> str:
    return f"sha256:{hashlib.sha256(token.encode()).hexdigest()}"


def _add(options: argparse.Namespace, document: CallersFile, path: Path) -> int:
    if not options.name.isascii() or not options.name.isprintable() or " " in options.name:
        raise ConfigError(f"{options.name!r} cannot be a name: expected visible ASCII characters")
    if options.name == "anonymous":
        raise ConfigError("anonymous means all callers without credentials: choose another name")
    roles = options.roles.split(",") if options.roles is not None else []
    unknown = [role for role in roles if role not in ROLES]
    if unknown:
        raise ConfigError(f"{unknown[0]!r} is not a role: expected one of {', '.join(ROLES)}")
    caller = next((known for known in document.callers if known.name == options.name), None)
    if caller is None:
        caller = CallerEntry(name=options.name, roles=roles or ["infer"])
        document.callers.append(caller)
    elif options.roles is not None:
        caller.roles = roles
    token = ""
    if options.certificate is not None:
        caller.certificates.append(options.certificate)
    else:
        token = secrets.token_urlsafe(_TOKEN_BYTES)
        caller.tokens.append(digest_of(token))
    write_callers(path, document)
    if token:
        sys.stdout.write(f"{token}\n")
        sys.stderr.write("this token is shown once: give it to its caller\n")
    return 0


def _list(options: argparse.Namespace, document: CallersFile, path: Path) -> int:
    for caller in document.callers:
        known = f"{len(caller.tokens)} tokens, {len(caller.certificates)} certificates"
        sys.stdout.write(f"{caller.name}: {','.join(caller.roles) or 'no role'} ({known})\n")
    return 0


def _remove(options: argparse.Namespace, document: CallersFile, path: Path) -> int:
    left = [caller for caller in document.callers if caller.name != options.name]
    if len(left) == len(document.callers):
        raise ConfigError(f"{path}: there is no caller {options.name!r}")
    write_callers(path, CallersFile(callers=left))
    return 0
