"""ModelViews: the models of a server by name and version, each with its inputs and outputs."""

from __future__ import annotations

from pipeline.engine.models import ModelEntry, ModelRegistry
from pipeline.errors import InputError
from pipeline.frontends.v2.control import RepositoryControl
from pipeline.frontends.v2.errors import V2Error, V2Status, v2_error
from pipeline.frontends.v2.interface import ModelInterface, Slot
from pipeline.frontends.v2.model import ConfiguredModel, Model, OpModel, PipelineModel
from pipeline.observe.statistics import StatisticsError, version_number
from pipeline.proto.v2.json import RawInput


class ModelViews:
    """The models of a server as callers of v2 see them.

    The methods that take a model's name, and a version that may be "", raise V2Error for those
    that are not there.

    Args:
        registry: has them.
        control: of a repository, from which they are loaded; None: there is none.

    Raises:
        ConfigError: what an Op declares of its inputs does not fit the graph.
    """

    def __init__(self, registry: ModelRegistry, control: RepositoryControl | None = None) -> None:
        self.registry: ModelRegistry = registry
        self._control = control
        self._views: dict[ModelEntry, Model] = {}
        for entry in registry.entries():
            self.view(entry)

    def view(self, entry: ModelEntry) -> Model:
        """Return a model with its interface, made when it is first asked for."""
        if entry not in self._views:
            if entry.served.model_config is not None:
                known = set(self.registry.entries())
                self._views = {each: self._views[each] for each in self._views if each in known}
                self._views[entry] = ConfiguredModel(
                    entry.served.model_config,
                    entry.op,
                    entry.served.labels,
                    entry.served.checks_output_shapes,
                )
                return self._views[entry]
            is_decoupled = entry.served.engine.executor.is_decoupled(entry.op)
            if entry.op is None:
                _, *ops = self.registry.members(entry.served)
                steps = [self.view(each) for each in ops]
                graph = entry.served.graph
                self._views[entry] = PipelineModel(entry.name, graph, steps, is_decoupled)
            else:
                note = entry.served.engine.note
                self._views[entry] = OpModel(entry.name, entry.op, note, is_decoupled)
        return self._views[entry]

    def has(self, name: str) -> bool:
        """Return whether there is a model of this name, in any version."""
        try:
            return bool(self.registry.versions(name))
        except InputError:  # which whoever asks for it is told
            return False

    def interface(self, name: str, version: str = "") -> ModelInterface:
        """Return a model's inputs and outputs."""
        return self.view(self.entry(name, version)).interface

    def raw_inputs(self, name: str, version: str = "") -> list[RawInput] | None:
        """Return a model's inputs, for requests that are only data; None if it declares none."""
        interface = self.interface(name, version)
        if interface.inputs is None:
            return None
        return [_raw_input(slot, interface.batches) for slot in interface.inputs]

    def is_decoupled(self, name: str, version: str = "") -> bool:
        """Return whether a model answers in parts."""
        return self.view(self.entry(name, version)).is_decoupled

    def check_unary(self, name: str, version: str, door: str) -> None:
        """Raise V2Error for a model that answers in parts, for which the `door` has no place."""
        if self.is_decoupled(name, version):
            text = f"{door} doesn't support models with decoupled transaction policy"
            raise V2Error(V2Status.UNSUPPORTED, text)

    def entry(self, name: str, version: str = "") -> ModelEntry:
        """Return a version of a model, or ("") the latest one."""
        unknown = f"Request for unknown model: '{name}'"
        number = number_of(version)
        versions = self.registry.versions(name)
        if not versions and (self._control is None or not self._control.has(name)):
            raise V2Error(V2Status.NOT_FOUND, f"{unknown} is not found")
        if number is None:
            latest = self.registry.latest(name)
            if latest is not None:
                return latest
            if self.registry.is_repository:
                raise V2Error(V2Status.NOT_FOUND, f"{unknown} has no available versions")
            wanted = max(versions, key=int)
        else:
            wanted = str(number)
        entry = versions.get(wanted)
        is_known = self._control is not None and self._control.has(name, int(wanted))
        if entry is None and not is_known:
            raise V2Error(V2Status.NOT_FOUND, f"{unknown} version {number} is not found")
        if entry is None or entry.is_unloaded:
            text = f"{unknown} version {wanted} is not at ready state"
            raise V2Error(V2Status.UNAVAILABLE, text)
        return entry


def number_of(version: str) -> int | None:
    """Return the version that a caller asks for; None: any. Raises V2Error: it is no number."""
    try:
        return version_number(version)
    except StatisticsError as error:
        raise v2_error(error) from error


def _raw_input(slot: Slot, batches: bool) -> RawInput:
    _, *shape = slot.full_shape(batches=True)
    batch = (1,) if batches else ()
    return RawInput(slot.name, slot.datatype, (*batch, *shape))
