"""ReplicatedControl: the models of a server of several replicas, which all of them load."""

from __future__ import annotations

import asyncio

import msgspec

from pipeline.errors import InitError, PipelineError
from pipeline.frontends.v2.control import Overrides
from pipeline.frontends.v2.errors import V2Error, V2Status, v2_error
from pipeline.repository.control import ControlSettings, ModelControl
from pipeline.repository.versions import ModelVersions
from pipeline.runtime.service import ReplicaContext

_CHANGE, _CHANGES, _LEAVE = "change-model", "changed-models", "leave"
_LOAD_S = 3600.0  # for all replicas to load a model
_TELL_S = 5.0
_encode, _decode = msgspec.json.encode, msgspec.json.decode


class WantedChange(msgspec.Struct, frozen=True):
    """A model that is loaded with `overrides`, or unloaded (None); see `RepositoryControl`."""

    name: str
    overrides: Overrides | None
    is_inner: bool = False
    with_dependents: bool = False


class ChangeOutcome(msgspec.Struct, frozen=True):
    """Outcome of a change at one replica; `kind`: the V2Status of its failure, "": it is made."""

    replica: int
    kind: str = ""
    text: str = ""


class ReplicatedControl(ModelControl):
    """The control of one replica: what its callers load or unload, all replicas do.

    A model that no replica can load is an error, and all is as before. One that cannot load what
    others have loaded leaves the server, and comes again when it can: so no replica that serves
    lacks a model that another one has. A replica that starts takes over what was changed before.
    """

    def __init__(
        self, settings: ControlSettings, versions: ModelVersions, replica: ReplicaContext
    ) -> None:
        super().__init__(settings, versions)
        self._replica = replica
        self._changes: dict[str, WantedChange] = {}  # the last of each model, in their order
        self._turns_of: dict[str, asyncio.Lock] = {}
        replica.answers[_CHANGE] = self._on_change
        replica.answers[_CHANGES] = self._on_question
        replica.answers[_LEAVE] = self._on_leave

    async def start(self) -> None:
        await super().start()
        await self.catch_up()

    async def catch_up(self) -> None:
        """Make the changes that other replicas have made. Raises InitError: one fails."""
        if not self.is_explicit:  # each looks at the folders by itself
            return
        answers = await self._replica.ask(_CHANGES, _TELL_S)
        told = [_decode(answer, type=list[WantedChange]) for answer in answers]
        for change in max(told, key=len, default=[]):
            if self._changes.get(change.name) != change:
                outcome = await self._change(change)
                if outcome.kind:
                    raise InitError(f"model '{change.name}', as other replicas: {outcome.text}")

    async def load(self, name: str, overrides: Overrides, is_inner: bool = False) -> None:
        await self._everywhere(WantedChange(name, overrides, is_inner))

    async def unload(self, name: str, with_dependents: bool = False) -> None:
        await self._everywhere(WantedChange(name, None, with_dependents=with_dependents))

    async def _everywhere(self, change: WantedChange) -> None:
        """Have all replicas do it. Raises V2Error: none could."""
        answers = await self._replica.ask(f"{_CHANGE} {_encode(change).decode()}", _LOAD_S)
        outcomes = [_decode(answer, type=ChangeOutcome) for answer in answers]
        if all(each.replica != self._replica.number for each in outcomes):  # it starts, or ends
            outcomes.append(await self._change(change))
        failed = [each for each in outcomes if each.kind]
        if len(failed) == len(outcomes):
            raise V2Error(V2Status[failed[0].kind], failed[0].text)
        if failed:
            leaving = _encode([each.replica for each in failed]).decode()
            await self._replica.ask(f"{_LEAVE} {leaving}", _TELL_S)

    async def _change(self, change: WantedChange) -> ChangeOutcome:
        """Do it here, behind what came before it for this model."""
        turn = self._turns_of.setdefault(change.name, asyncio.Lock())
        async with turn:
            try:
                if change.overrides is None:
                    await super().unload(change.name, change.with_dependents)
                else:
                    await super().load(change.name, change.overrides, change.is_inner)
            except (V2Error, PipelineError) as error:  # who asks waits for an answer
                told = v2_error(error)
                return ChangeOutcome(self._replica.number, told.kind.name, str(told))
            finally:  # an engine tells that it is ready before its model is
                self._replica.on_readiness(self.is_ready)
            self._changes.pop(change.name, None)
            self._changes[change.name] = change
            return ChangeOutcome(self._replica.number)

    async def _on_change(self, text: str) -> bytes:
        return _encode(await self._change(_decode(text, type=WantedChange)))

    async def _on_question(self, text: str) -> bytes:
        return _encode([*self._changes.values()])

    async def _on_leave(self, text: str) -> bytes:
        if self._replica.number in _decode(text, type=list[int]):
            self._replica.leave()
        return b""
