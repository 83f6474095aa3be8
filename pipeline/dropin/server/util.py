"""`paddle_serving_server.util`: the parser of options, and the file of processes."""

from __future__ import annotations

import argparse
import json
import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipeline.config.yaml import read_yaml
from pipeline.errors import ConfigError

__all__ = ["ArgsParser", "dump_pid_file", "kill_stop_process_by_pid", "pid_is_exist"]

_SIGNALS = {"stop": signal.SIGINT, "kill": signal.SIGKILL}


class ArgsParser(argparse.ArgumentParser):
    """`-c config.yml -o op.det.concurrency=2 ...`; the result is in `conf_dict`."""

    def __init__(self) -> None:
        super().__init__(formatter_class=argparse.RawDescriptionHelpFormatter)
        self.add_argument("-c", "--config", help="configuration file to use")
        self.add_argument("-o", "--opt", nargs="+", help="set configuration options: key.key=value")

    def parse_args(self, argv: Sequence[str] | None = None) -> Any:  # type: ignore[override]
        """Return the options; end the script if they are wrong, as argparse does."""
        args = super().parse_args(argv)
        if args.config is None:
            self.error("name the configuration file: --config config.yml")
        try:
            args.conf_dict = _conf_dict(args.config, args.opt or [])
        except ConfigError as error:
            self.error(str(error))
        return args


def _conf_dict(file: str, options: Sequence[str]) -> dict[str, Any]:
    """Return the mapping in `file` with `key.key=value` set in it. Raises ConfigError."""
    source = read_yaml(file)
    if source.problems:
        raise ConfigError("\n".join(source.problems))
    conf: Any = {} if source.data is None else source.data
    if not isinstance(conf, dict):
        raise ConfigError(f"{file}: expected a mapping of keys, got {type(conf).__name__}")
    for option in options:
        path, equals, text = option.strip().partition("=")
        if not equals or not all(path.split(".")):
            raise ConfigError(f"option {option!r} is not of the form key.key=value")
        _set(conf, path.split("."), _value(path, text), option)
    return conf


def _set(conf: dict[str, Any], keys: Sequence[str], value: object, option: str) -> None:
    for key in keys[:-1]:
        if conf.get(key) is None:
            conf[key] = {}
        conf = conf[key]
        if not isinstance(conf, dict):
            raise ConfigError(f"option {option!r}: {key} is a value, it has no keys")
    conf[keys[-1]] = value


def _value(path: str, text: str) -> object:
    """Return a number or a bool where the text is one; `devices` is always text."""
    if path.endswith("devices"):
        return text
    if text in ("True", "False"):
        return text == "True"
    for number in (int, float):
        try:
            return number(text)
        except ValueError:
            continue
    return text


def dump_pid_file(portList: Sequence[int], model: object) -> None:
    """Write this process into ProcessInfo.json in `SERVING_HOME`, or in the current folder.

    Replaces entries of the same ports. Only users' tools read the file.
    """
    file = Path(os.environ.get("SERVING_HOME", "."), "ProcessInfo.json")
    ports = list(portList)
    known = json.loads(file.read_text() or "[]") if file.exists() else []
    entries = [entry for entry in known if not set(entry["port"]) & set(ports)]
    entries.append(
        {"pid": os.getpid(), "port": ports, "model": str(model), "start_time": time.time()}
    )
    file.write_text(json.dumps(entries))


def pid_is_exist(pid: int) -> bool:
    """Return whether this process may send a signal to the process `pid`."""
    return _send(pid, 0)


def kill_stop_process_by_pid(command: str, pid: int) -> None:
    """Send SIGINT ("stop") or SIGKILL ("kill") to a process, not to its group.

    The workers of a server end with it.
    """
    if command in _SIGNALS:
        _send(pid, _SIGNALS[command])


def _send(pid: int, number: int) -> bool:
    try:
        process = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        signal.pidfd_send_signal(process, number)
    except OSError:
        return False
    finally:
        os.close(process)
    return True
