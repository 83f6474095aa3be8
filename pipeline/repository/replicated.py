"""ReplicatedControl: the models of a server of several replicas, which all of them load."""

from __future__ import annotations

import asyncio
import logging
from operator import attrgetter
from weakref import WeakValueDictionary

import msgspec

from pipeline.errors import InitError, PipelineError, described
from pipeline.frontends.v2.control import Overrides
from pipeline.frontends.v2.errors import V2Error, V2Status, internal, v2_error
from pipeline.repository.control import ControlSettings, ModelControl
from pipeline.repository.versions import ModelVersions
from pipeline.runtime.service import ReplicaContext

_CHANGE, _CHANGES, _LEAVE = "change-model", "changed-models", "leave"
_WAIT = "wait"  # for the changes that are under way
_NUMBER = attrgetter("number")
_LOAD_S = 3600.0  # for all replicas to load a model
_TELL_S = 5.0

_LOGGER = logging.getLogger(__name__)
_encode, _decode = msgspec.json.encode, msgspec.json.decode


class WantedChange(msgspec.Struct, frozen=True):
    """A model that is loaded with `overrides`, or unloaded (None); see `RepositoryControl`.

    `number` is that of the question by which replicas were asked for it; 0: none was.
    """

    name: str
    overrides: Overrides | None
    is_inner: bool = False
    with_dependents: bool = False
    number: int = 0


class ChangesMade(msgspec.Struct, frozen=True):
    """The last change of each model that a replica has made, as it was asked by question `asked`.

    All changes with lower numbers are made there, or have failed.
    """

    replica: int
    asked: int
    changes: list[WantedChange]


class ChangeOutcome(msgspec.Struct, frozen=True):
    """Outcome of a change at one replica; `kind`: the V2Status of its failure, "": it is made."""

    replica: int
    number: int
    kind: str = ""
    text: str = ""


class ReplicatedControl(ModelControl):
    """The control of one replica: what its callers load or unload, all replicas do.

    A model that no replica can load is an error, and all is as before. One that cannot load what
    others have loaded leaves the server, and comes again when it can: so no replica that serves
    lacks a model that another one has. A replica that starts takes over what was changed before,
    and has those leave that lack it: who was to tell them so may have died.
    """

    def __init__(
        self, settings: ControlSettings, versions: ModelVersions, replica: ReplicaContext
    ) -> None:
        super().__init__(settings, versions, replica.on_readiness)
        self._replica = replica
        self._made: dict[str, WantedChange] = {}  # the last of each model
        self._turns_of = WeakValueDictionary[str, asyncio.Lock]()  # callers name models at will
        replica.answers[_CHANGE] = self._on_change
        replica.answers[_CHANGES] = self._on_question
        replica.answers[_LEAVE] = self._on_leave

    async def start(self) -> None:
        await super().start()
        await self._follow(_CHANGES, _TELL_S)

    async def catch_up(self) -> None:
        """Make the changes that were under way before this replica was asked for any.

        Raises InitError: one fails.
        """
        others = await self._follow(f"{_CHANGES} {_WAIT}", _LOAD_S)
        await self._have_leave([other.replica for other in others if self._is_behind(other)])

    async def _follow(self, question: str, timeout_s: float) -> list[ChangesMade]:
        """Make the changes that other replicas have made; return what they tell of these.

        Raises InitError: one fails.
        """
        if not self.is_explicit:  # each looks at the folders by itself
            return []
        answers = await self._replica.ask(question, timeout_s)
        made = [_decode(answer, type=ChangesMade) for answer in answers]
        changes = [
            change for other in made for change in other.changes if change.number < other.asked
        ]
        newest = {change.name: change for change in sorted(changes, key=_NUMBER)}
        for change in sorted(newest.values(), key=_NUMBER):
            if change.name not in self._made or self._made[change.name].number < change.number:
                outcome = await self._change(change)
                if outcome.kind:
                    raise InitError(f"model '{change.name}', as other replicas: {outcome.text}")
        return [other for other in made if other.replica != self._replica.number]

    def _is_behind(self, other: ChangesMade) -> bool:
        """Return whether another replica lacks a change that was made here."""
        numbers = {change.name: change.number for change in other.changes}
        made = (change for change in self._made.values() if change.number < other.asked)
        return any(numbers.get(change.name, -1) < change.number for change in made)

    async def _have_leave(self, replicas: list[int]) -> None:
        """Have replicas that lack what others have replaced."""
        if replicas:
            await self._replica.ask(f"{_LEAVE} {_encode(replicas).decode()}", _TELL_S)

    async def load(self, name: str, overrides: Overrides, is_inner: bool = False) -> None:
        await self._everywhere(WantedChange(name, overrides, is_inner))

    async def unload(self, name: str, with_dependents: bool = False) -> None:
        await self._everywhere(WantedChange(name, None, with_dependents=with_dependents))

    async def _everywhere(self, change: WantedChange) -> None:
        """Have all replicas do it. Raises V2Error: none could."""
        answers = await self._replica.ask(f"{_CHANGE} {_encode(change).decode()}", _LOAD_S)
        outcomes = [_decode(answer, type=ChangeOutcome) for answer in answers]
        if all(
            outcome.replica != self._replica.number for outcome in outcomes
        ):  # it starts, or ends
            number = max((outcome.number for outcome in outcomes), default=0)
            change = msgspec.structs.replace(change, number=number)
            outcomes.append(await self._change(change))
        failed = [outcome for outcome in outcomes if outcome.kind]
        if len(failed) == len(outcomes):
            raise V2Error(V2Status[failed[0].kind], failed[0].text)
        await self._have_leave([outcome.replica for outcome in failed])

    async def _change(self, change: WantedChange) -> ChangeOutcome:
        """Do it here, behind what came before it for this model."""
        who = self._replica.number, change.number
        turn = self._turns_of.setdefault(change.name, asyncio.Lock())
        async with turn:
            try:
                if change.overrides is None:
                    await super().unload(change.name, change.with_dependents)
                else:
                    await super().load(change.name, change.overrides, change.is_inner)
            except Exception as error:  # of any kind: who asks waits for an answer
                text = _told(change, error)
                return ChangeOutcome(*who, text.kind.name, str(text))
            self._made[change.name] = change
            return ChangeOutcome(*who)

    async def _on_change(self, text: str, number: int) -> bytes:
        change = _decode(text, type=WantedChange)
        return _encode(await self._change(msgspec.structs.replace(change, number=number)))

    async def _on_question(self, text: str, number: int) -> bytes:
        for turn in [*self._turns_of.values()] if text == _WAIT else ():
            async with turn:
                pass  # the change that was under way is made, or has failed
        return _encode(ChangesMade(self._replica.number, number, [*self._made.values()]))

    async def _on_leave(self, text: str, number: int) -> bytes:
        if self._replica.number in _decode(text, type=list[int]):
            self._replica.leave()
        return b""


def _told(change: WantedChange, error: Exception) -> V2Error:
    """Return the message that a caller receives for a failed change."""
    if isinstance(error, V2Error | PipelineError):
        return v2_error(error)
    _LOGGER.error("model '%s' could not be changed", change.name, exc_info=error)
    return internal(f"model '{change.name}': {described(error)}")
