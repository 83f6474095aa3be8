"""Triton's flags of a response cache and of a rate limiter, as keys of config.yml."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pipeline.config import registry
from pipeline.config.fields import settings_of
from pipeline.errors import ConfigError

_FORM = "--cache-config option format is '<cache name>,<setting>=<value>'"
_REQUIRED_OF_REDIS = ("host", "port")


def cache_settings(given: Sequence[str], byte_size: int | None) -> dict[str, dict[str, Any]]:
    """Return what `cache` of config.yml says; empty: answers are kept nowhere.

    Args:
        given: each `--cache-config`, "local,size=1048576".
        byte_size: `--response-cache-byte-size`, which Triton had before.

    Raises:
        ConfigError: in Triton's words.
    """
    if byte_size is not None and given:
        raise ConfigError(
            "Incompatible flags --response-cache-byte-size and --cache-config both provided. "
            "Please provide one or the other."
        )
    if byte_size is not None:
        return {"local": {"size": byte_size}} if byte_size > 0 else {}
    caches: dict[str, dict[str, Any]] = {}
    for text in given:
        name, setting, value = _parted(text)
        caches.setdefault(name, {})[setting] = _number(name, setting, value)
    if len(caches) > 1:
        raise ConfigError("found multiple cache configurations, expected only one")
    missing = [name for name in _REQUIRED_OF_REDIS if name not in caches.get("redis", {})]
    if "redis" in caches and missing:
        raise ConfigError(
            "failed to initialize Redis cache: Must at a minimum specify 'host' and 'port', found "
            f"no {' and no '.join(missing)}"
        )
    return caches


def _parted(text: str) -> tuple[str, str, str]:
    name, comma, rest = text.partition(",")
    if not (name and comma):
        raise ConfigError(f"No cache specified. {_FORM}. Got {text}")
    setting, _, value = rest.partition("=")
    if not (setting and value):
        raise ConfigError(f"{_FORM}. Got {text}")
    return name, setting, value


def _number(name: str, setting: str, value: str) -> Any:
    """Return a number where the cache's option is one; a port that is none is 0, as in Triton."""
    options = registry.options_of("caches", name)
    known = settings_of(options).get(setting) if options is not None else None
    if known is None or not known.expected.startswith("int"):
        return value
    if _is_number(value):
        return int(value)
    return 0 if setting == "port" else value


def resource_of(text: str) -> dict[str, Any]:
    """Return one of `rate_limit.resources`, of NAME:COUNT or NAME:COUNT:DEVICE. ConfigError."""
    name, *numbers = text.split(":")
    if len(numbers) not in (1, 2) or not all(map(_is_number, numbers)):
        raise ConfigError(
            "--rate-limit-resource option format is '<resource_name>:<count>:<device>' or "
            f"'<resource_name>:<count>'. Got {text}"
        )
    return {"name": name, **dict(zip(("count", "device"), map(int, numbers), strict=False))}


def _is_number(text: str) -> bool:
    return text.isascii() and text.removeprefix("-").isdigit()
