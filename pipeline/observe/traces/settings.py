"""Settings of traces, those of each model over those of all, and whose turn it is to be traced.

The rules are those of Triton's server (its `docs/protocol/extension_trace.md`): what a model does
not say is as for all models, what they do not say is as at the start.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from pipeline.errors import ConfigError

NO_LIMIT = -1
"""`count` of traces without end."""


class TraceSettings(msgspec.Struct, frozen=True):
    """Settings: what is traced, and where to.

    Args:
        file: where traces go; "": nowhere, and nothing is traced.
        level: "TIMESTAMPS", "TENSORS" or both; none: tracing is off.
        rate: every so many-th request is traced.
        count: traces that are still to be made; NO_LIMIT: any number.
        log_frequency: traces in each of the files `<file>.0`, `<file>.1`; 0: all are in `file`.
    """

    file: str = ""
    level: tuple[str, ...] = ()
    rate: int = 1000
    count: int = NO_LIMIT
    log_frequency: int = 0

    @property
    def fault(self) -> str:
        """Reason why nothing is traced; "" if something is."""
        if not self.level:
            return "tracing is disabled"
        if self.rate == 0:
            return "sample rate must be non-zero"
        return "" if self.file else "trace file name is not given"


class TraceSampler:
    """Settings in force, with what was counted since they are.

    Attributes:
        own: names of the settings that were said for it, and are not another's.
        collected: traces that are complete.
        unwritten: of these, those that wait for a file with a number.
        is_over: other settings have taken its place; traces that began under it go on.
    """

    def __init__(self, settings: TraceSettings, own: frozenset[str] = frozenset()) -> None:
        self._given = settings
        self.own: frozenset[str] = own
        self._is_off = bool(settings.fault)
        self._left = settings.count
        self._seen = 0
        self.collected: int = 0
        self.unwritten: int = 0
        self.is_over: bool = False

    @property
    def settings(self) -> TraceSettings:
        """The settings, `count` as it is now."""
        return msgspec.structs.replace(self._given, count=self._left)

    @property
    def is_off(self) -> bool:
        """True if nothing more is traced."""
        return self._is_off or self._left == 0

    def is_next(self) -> bool:
        """Count a request; return whether it is to be traced."""
        if self.is_off:
            return False
        self._seen += 1
        if self._seen % self._given.rate:
            return False
        if self._left > 0:
            self._left -= 1
        return True

    def is_file_full(self) -> bool:
        """Count a trace that is complete; return whether a file with a number ends with it."""
        self.collected += 1
        self.unwritten += 1
        is_last = self._left == 0 and self.collected == self._seen
        most = self._given.log_frequency
        is_full = is_last or (most > 0 and self.unwritten >= most)
        if is_full:
            self.unwritten = 0
        return is_full


class TraceRegister:
    """The settings of all models, and those that single models have instead.

    Args:
        settings: for all, at the start.
    """

    def __init__(self, settings: TraceSettings) -> None:
        self._first = settings
        self._for_all = TraceSampler(settings)
        self._of_models: dict[str, TraceSampler] = {}

    @property
    def is_off(self) -> bool:
        """True if nothing is traced of any model."""
        return self._for_all.is_off and all(each.is_off for each in self._of_models.values())

    def sampler(self, model: str = "") -> TraceSampler:
        """Return what is in force for a model; "": for those that have nothing of their own."""
        return self._of_models.get(model, self._for_all)

    def change(self, model: str, changes: Mapping[str, Any]) -> list[TraceSampler]:
        """Change settings of a model, or ("") of all; None clears one. Returns what is over.

        Raises:
            ConfigError: they mean nothing together, in Triton's words; nothing is changed.
        """
        if model:
            return self._change_one(model, changes)
        over, self._for_all = [self._for_all], self._changed(self._for_all, self._first, changes)
        for name in list(self._of_models):
            over += self._change_one(name, {})
        return _over(over)

    def _change_one(self, model: str, changes: Mapping[str, Any]) -> list[TraceSampler]:
        before = self._of_models.get(model)
        after = self._changed(before, self._for_all.settings, changes)
        over = [] if before is None else [before]
        if after.own:
            self._of_models[model] = after
        else:
            self._of_models.pop(model, None)
        return _over(over)

    def _changed(
        self, before: TraceSampler | None, otherwise: TraceSettings, changes: Mapping[str, Any]
    ) -> TraceSampler:
        said: dict[str, Any] = {}
        if before is not None:
            now = before.settings
            said = {name: getattr(now, name) for name in before.own}
        said |= changes
        said = {name: value for name, value in said.items() if value is not None}
        settings = msgspec.structs.replace(otherwise, **said)
        if settings.level and settings.fault:
            raise ConfigError(f"Attempting to set invalid trace setting :{settings.fault}")
        return TraceSampler(settings, frozenset(said))


def _over(samplers: list[TraceSampler]) -> list[TraceSampler]:
    for each in samplers:
        each.is_over = True
    return samplers
