"""Settings of one Op: constructor arguments, config.yml and `dag`, checked together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from pipeline.config.batching import DynamicBatchingConfig, fault_of_batching, traits_of
from pipeline.config.fields import Mismatch, found, settings_of
from pipeline.config.reader import Reader
from pipeline.config.schema import (
    DagConfig,
    LocalServiceConfig,
    OpConfig,
    SequenceConfig,
    ServiceConfig,
)
from pipeline.config.sections import fault_of_bounds, fault_of_ragged
from pipeline.config.sequences import controls_of, fault_of_states
from pipeline.config.yaml import ConfigSource
from pipeline.errors import ConfigError

Section = TypeVar("Section", bound=Struct)


def resolve_op(name: str, given: Mapping[str, object], config: ServiceConfig) -> OpConfig:
    """Return the Op's settings: from the constructor, otherwise from YAML, otherwise the default.

    The environment and `--set` override the constructor.
    `given` holds constructor arguments by name, in the constructor's units (timeouts are ms and
    may be floats); None, and a `retry` of 0, stand for not given. `workers` and
    `channel_recv_first_arrive`, where absent, are taken from `dag`. Raises ConfigError.
    """
    arguments = settings_of(OpConfig)
    values: dict[str, Any] = {}
    problems = []
    given = _without_overrides(name, given, config)
    handler = given.pop("local_service_handler", None)
    if handler is not None:
        values["local_service_conf"] = _local_service_of(name, handler)
    sequence = given.pop("sequence", None)
    if sequence is not None:
        section = {"strategy": sequence} if isinstance(sequence, str) else sequence
        values["sequence"] = _section_of(name, "sequence", SequenceConfig, section)
    dynamic = given.pop("dynamic_batching", None)
    if dynamic is not None:
        batching = _section_of(name, "dynamic_batching", DynamicBatchingConfig, dynamic)
        values |= {"dynamic_batching": batching, "batching": "dynamic"}
    for argument, value in given.items():
        setting = arguments.get(argument)
        if setting is None or setting.section is not None:
            problems.append(f"Op {name!r}, argument {argument}: unknown")
        elif value is not None and not (argument == "retry" and type(value) is int and value == 0):
            try:
                values[setting.field] = setting.read_argument(value)
            except Mismatch as mismatch:
                problems.append(f"Op {name!r}, argument {argument}: {mismatch}")
    if problems:
        raise ConfigError("\n".join(problems))
    op = msgspec.structs.replace(config.op.get(name, OpConfig()), **values)
    if op.sequence != SequenceConfig():
        _check_sequence(name, op, config)
    _check_batching(name, op, config)
    if fault := fault_of_bounds(op):
        raise ConfigError(f"{config.source}: op.{name}.{fault}")
    _check_ragged(name, op, config)
    if op.input_store.url is not None and op.client_type != "pipeline_grpc":
        place = f"{config.source}: op.{name}.input_store"
        raise ConfigError(f"{place}: only client_type: pipeline_grpc has one, leave it out")
    if op.response_cache and (op.sequence != SequenceConfig() or traits_of(op.batching).steps):
        place = f"{config.source}: op.{name}.response_cache"
        raise ConfigError(f"{place}: answers of steps of a sequence are not kept, leave it out")
    return _with_dag(op, config.dag)


def _without_overrides(
    name: str, given: Mapping[str, object], config: ServiceConfig
) -> dict[str, object]:
    """Return an Op's constructor arguments without the overridden ones.

    Raises ConfigError: only a part of an argument was overridden.
    """
    given_values = {argument: value for argument, value in given.items() if value is not None}
    for key in config.overrides.get(name, ()):
        section, _, within = key.partition(".")
        argument = _ARGUMENT_OF.get(section, section)
        if within and argument in given_values:
            raise ConfigError(
                f"op.{name}.{key} is given by the environment or --set, but the script's Op "
                f"{name!r} has the argument {argument}, which says all of {section}: give it there"
            )
        given_values.pop(argument, None)
    return given_values


_ARGUMENT_OF = {"local_service_conf": "local_service_handler"}
"""Arguments of an Op's constructor with other names than their keys."""


def _local_service_of(name: str, handler: object) -> LocalServiceConfig:
    """Return the settings of an Op's local_service_handler, checked as YAML. Raises ConfigError."""
    where = f"Op {name!r}, argument local_service_handler"
    as_settings = getattr(handler, "as_settings", None)  # a script's own handler
    if as_settings is None:
        raise ConfigError(f"{where}: expected a LocalServiceHandler, found {found(handler)}")
    settings = as_settings()
    reader = Reader(ConfigSource(where, settings), LocalServiceConfig)
    values = reader.fields(LocalServiceConfig, settings, ())
    if reader.problems:
        raise ConfigError("\n".join(reader.problems))
    return LocalServiceConfig(**values)


def _section_of(name: str, argument: str, section: type[Section], data: object) -> Section:
    """Return the section in an Op's argument, a mapping, checked as YAML."""
    where = f"Op {name!r}, argument {argument}"
    reader = Reader(ConfigSource(where, data), section)
    values = reader.fields(section, data, ())
    if reader.problems or reader.warnings:
        raise ConfigError("\n".join([*reader.problems, *reader.warnings]))
    return section(**values)


def _check_batching(name: str, op: OpConfig, config: ServiceConfig) -> None:
    """Raise ConfigError for settings that contradict `dynamic_batching`."""
    batching, wrong = op.dynamic_batching, ""
    if not traits_of(op.batching).reads_section:
        if batching != DynamicBatchingConfig():
            wrong = f"is for batching: dynamic, found {op.batching}"
    elif op.auto_batching_timeout_s is not None:
        wrong = "with auto_batching_timeout: max_queue_delay_microseconds says it, leave that out"
    wrong = wrong or fault_of_batching(name, batching, op.batch_size)
    if wrong:
        raise ConfigError(f"{config.source}: op.{name}.dynamic_batching: {wrong}")


def _check_ragged(name: str, op: OpConfig, config: ServiceConfig) -> None:
    """Raise ConfigError for settings that contradict ragged batches."""
    if not (op.allow_ragged_batch or op.batch_input or op.batch_output):
        return
    wrong = fault_of_ragged(op.allow_ragged_batch, op.batch_input, op.batch_output)
    if traits_of(op.batching).steps:
        wrong = f"allow_ragged_batch: with batching: {op.batching} nothing waits for a batch"
    if wrong:
        raise ConfigError(f"{config.source}: op.{name}.{wrong}")


def _check_sequence(name: str, op: OpConfig, config: ServiceConfig) -> None:
    """Raise ConfigError for settings that contradict sequences."""
    sequence, wrong = op.sequence, ""
    if traits_of(op.batching).steps:  # each request is a sequence and waits for no other
        if sequence.checkpoint:
            wrong = (
                f"checkpoint: with batching: {op.batching} each request is a sequence of its own"
            )
    elif sequence.strategy is None:
        wrong = "strategy: expected direct or oldest, found nothing"
    elif op.batching != OpConfig().batching:
        wrong = f"with batching: {op.batching}: the strategy says how batches are cut, leave it out"
    elif config.dag.retry > 1:
        wrong = "with dag.retry: a request of a sequence cannot start again, as a second step"
    elif config.replicas > 1:
        wrong = "with build_dag_each_worker: a sequence would be at several processes"
    elif sequence.strategy == "direct" and (
        sequence.max_candidates or sequence.preferred_batch_sizes or sequence.preserve_ordering
    ):
        wrong = (
            "max_candidates, preferred_batch_sizes and preserve_ordering are for strategy: oldest"
        )
    elif sequence.strategy == "oldest" and sequence.min_slot_utilization:
        wrong = "min_slot_utilization is for strategy: direct"
    elif any(size > op.batch_size for size in sequence.preferred_batch_sizes):
        wrong = f"preferred_batch_sizes: more than batch_size, which is {op.batch_size}"
    elif sequence.checkpoint and not sequence.state:
        wrong = "checkpoint: it keeps what is declared as state, which is nothing"
    try:
        controls_of(name, sequence.controls)
    except ConfigError as error:
        wrong = wrong or str(error)
    wrong = wrong or fault_of_states(sequence.state)
    if wrong:
        raise ConfigError(f"{config.source}: op.{name}.sequence: {wrong}")


def _workers_of(op: OpConfig, dag: DagConfig) -> str:
    """Return the worker kind of an Op that names none."""
    if dag.workers is not None and op.usual_time_s >= dag.slow_from_s:
        return dag.workers
    return "thread" if dag.is_thread_op else "process"


def _with_dag(op: OpConfig, dag: DagConfig) -> OpConfig:
    """Return the Op with the defaults of `dag`."""
    first_arrive = op.channel_recv_first_arrive
    return msgspec.structs.replace(
        op,
        workers=op.workers or _workers_of(op, dag),
        channel_recv_first_arrive=(
            dag.channel_recv_first_arrive if first_arrive is None else first_arrive
        ),
    )
