"""Hooks: the methods that users override, their forms, and mistakes found at start."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import takewhile
from types import CodeType
from typing import Any, NamedTuple

from pipeline.errors import InitError
from pipeline.op import Op, RequestOp, ResponseOp, overrides, predictor_of, runs_process

_ANY = "*"
_NAMED = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
CONTEXT = "context"
"""The parameter with which a hook asks for the `RequestContext` of its requests."""


@dataclass(frozen=True, slots=True)
class Hook:
    """A method that users override.

    Args:
        name: of the method.
        most: the parameters of its longest form, after `self`.
        least: how many of them its shortest form has.
        others: the forms between, for texts.
        may_be_async: whether it may be `async def`.
        answer: what it returns, for texts.
        gives_context: whether it works on requests, and so can ask for their context.
        may_yield: whether it may be a generator, each of whose answers is a part of a stream.
    """

    name: str
    most: tuple[str, ...] = ()
    least: int = 0
    others: tuple[tuple[str, ...], ...] = ()
    may_be_async: bool = True
    answer: str = "one dict"
    gives_context: bool = False
    may_yield: bool = False

    @property
    def forms(self) -> str:
        """Return every accepted form, the longest first."""
        forms = dict.fromkeys((self.most, *self.others, self.most[: self.least]))
        return ", ".join(f"{self.name}({', '.join(('self', *form))})" for form in forms)


INIT_OP = Hook("init_op", answer="nothing")
PREPROCESS = Hook(
    "preprocess",
    ("input_dicts", "data_id", "log_id"),
    1,
    (("input_dicts", "log_id"), ("input_dicts", "data_id")),
    answer="one dict, or a list of dicts",
    gives_context=True,
)
PROCESS = Hook("process", ("feed_batch", "typical_logid"), 1, gives_context=True, may_yield=True)
POSTPROCESS = Hook(
    "postprocess",
    ("input_dicts", "fetch_data", "data_id", "log_id"),
    2,
    (("input_dicts", "fetch_data", "log_id"), ("input_dicts", "fetch_data", "data_id")),
    gives_context=True,
    may_yield=True,
)
CHECK_JUMPING = Hook("check_jumping", ("input_data",), 1, may_be_async=False, answer="a bool")
SHAPES = Hook("set_dynamic_shape_info", may_be_async=False, answer="nothing")
UNPACK = Hook("unpack_request_package", ("request",), 1, gives_context=True)
PACK = Hook("pack_response_package", ("channeldata",), 1, answer="one Response", gives_context=True)
_OF_ALL = (INIT_OP, SHAPES)
_OF_OPS = (*_OF_ALL, PREPROCESS, PROCESS, POSTPROCESS, CHECK_JUMPING)
_EVERY = (*_OF_OPS, UNPACK, PACK)


def check_hooks(ops: Iterable[Op]) -> None:
    """Check every hook that will be called.

    Raises:
        InitError: some hooks cannot be called; it names their Ops, methods and expected forms.
    """
    wrong = [text for op in ops for hook in _called(op) for text in _faults(op, hook)]
    if wrong:
        raise InitError("\n".join(wrong))


class HookCall(NamedTuple):
    """The form of a call of a hook: so many arguments by position, and perhaps `context` by name.

    `names` are the positional parameters. A parameter called `context` in the place of a positional
    argument gets that argument, so that old scripts still work.
    """

    arguments: int
    names: list[str]
    takes_context: bool = False


def asking(op: Op) -> frozenset[str]:
    """Return the names of the hooks of `op` that ask for the context of their requests."""
    gives = [hook for hook in _called(op) if hook.gives_context]
    return frozenset(hook.name for hook in gives if call_form(op, hook).takes_context)


def call_form(op: Op, hook: Hook) -> HookCall:
    """Return how a hook is called.

    Raises:
        InitError: it cannot be called with any accepted number of arguments.
    """
    method = getattr(op, hook.name)
    outer = _signature(method, follow_wrapped=False)
    if outer is None and inspect.isfunction(getattr(method, "__func__", None)):
        raise InitError(
            f"Op {op.name!r}: {_described(method, hook)} takes no parameter, not even self; it is "
            f"called as {hook.forms}."
        )
    if outer is None:  # compiled code without a signature: assume that it takes everything
        return HookCall(len(hook.most), [_ANY])
    inner = _signature(method, follow_wrapped=True)
    says_more = inner is not None and _ANY in _positional(outer)
    for seen in ([outer, inner], [outer]) if says_more else ([outer],):
        signatures = [signature for signature in seen if signature]
        names = _positional(signatures[-1])
        context = signatures[-1].parameters.get(CONTEXT)
        asks = hook.gives_context and context is not None and context.kind in _NAMED
        asks = asks and (overrides(op, hook.name) or _predicts_in_context(op))
        for count in range(len(hook.most), hook.least - 1, -1):
            if asks and all(_binds(signature, count, context=None) for signature in signatures):
                return HookCall(count, names, takes_context=True)
            if all(_binds(signature, count) for signature in signatures):
                return HookCall(count, names)
    raise InitError(
        f"Op {op.name!r}: {_described(method, hook)} takes {outer}: expected one of the forms "
        f"{hook.forms}."
    )


def _predicts_in_context(op: Op) -> bool:
    """Return whether the predictor of an Op takes the context."""
    predictor = predictor_of(op)
    signature = None if predictor is None else _signature(predictor.predict, follow_wrapped=True)
    return signature is not None and CONTEXT in signature.parameters


def _called(op: Op) -> Iterator[Hook]:
    """Return the hooks of `op` that are called."""
    for hook in _hooks_of(op):
        is_idle = hook is PROCESS and not runs_process(op)
        if not is_idle and (hook is not CHECK_JUMPING or op.is_jump_op()):
            yield hook


def _faults(op: Op, hook: Hook) -> Iterator[str]:
    method = getattr(op, hook.name)
    if not callable(method):
        yield (
            f"Op {op.name!r}: {type(op).__qualname__}.{hook.name} is not a method, but "
            f"{type(method).__name__}. Give it another name, or write {hook.forms}."
        )
        return
    where = f"Op {op.name!r}: {_described(method, hook)}"
    if yields(op, hook.name) and not hook.may_yield:
        yield (
            f"{where} has a yield, which makes it a generator: only process or postprocess may be "
            f"one, whose answers are then a stream. Return {hook.answer}."
        )
    elif hook is POSTPROCESS and yields(op, hook.name) and yields(op, PROCESS.name):
        yield f"{where} is a generator, and so is process: only one of them may be."
    elif inspect.iscoroutinefunction(method) and not hook.may_be_async:
        yield f"{where} is async def, and nobody awaits it. Make it def."
    try:
        call_form(op, hook)
    except InitError as error:
        yield str(error)


def yields(op: Op, hook: str) -> bool:
    """Return whether a hook is a generator, `async def` or not."""
    method = getattr(op, hook)
    return inspect.isgeneratorfunction(method) or inspect.isasyncgenfunction(method)


def _described(method: Any, hook: Hook) -> str:
    """Return the method's name and where it is written."""
    function = inspect.unwrap(getattr(method, "__func__", method))
    name = getattr(function, "__qualname__", hook.name)
    code = getattr(function, "__code__", None)
    if not isinstance(code, CodeType):
        return str(name)
    return f"{name} ({os.path.basename(code.co_filename)}:{code.co_firstlineno})"


def _signature(method: Callable[..., Any], follow_wrapped: bool) -> inspect.Signature | None:
    try:
        return inspect.signature(method, follow_wrapped=follow_wrapped)
    except (TypeError, ValueError):  # compiled code may have no signature
        return None


def _binds(signature: inspect.Signature, count: int, **named: None) -> bool:
    try:
        signature.bind(*[None] * count, **named)
    except TypeError:
        return False
    return True


def _positional(signature: inspect.Signature) -> list[str]:
    """Return the names of the parameters that can be passed by position; "*" for any number."""
    names = []
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.VAR_POSITIONAL:
            names.append(_ANY)
        elif parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            names.append(parameter.name)
    return names


# Names that miss a hook -------------------------------------------------------------------------


def doubtful_names(ops: Iterable[Op]) -> Iterator[str]:
    """Yield warnings of methods that are probably mistakes.

    These are methods whose name is nearly a hook's, and hooks whose `context` gets another
    argument.
    """
    ops = list(ops)
    for op in ops:
        yield from _misplaced_contexts(op)
    owners: dict[type, Op] = {}
    ours = (__name__.partition(".")[0], "builtins")
    for op in ops:
        for cls in type(op).__mro__:
            if cls.__module__.partition(".")[0] not in ours:
                owners.setdefault(cls, op)
    mentioned = {name for cls in owners for name in _mentioned_in(cls)}
    for cls, op in owners.items():
        for name, value in vars(cls).items():
            is_method = inspect.isfunction(value) or isinstance(value, staticmethod | classmethod)
            if is_method and name not in mentioned and (doubt := _doubt(op, cls, name)):
                yield doubt


def _misplaced_contexts(op: Op) -> Iterator[str]:
    for hook in _called(op):
        count, names, _ = call_form(op, hook)
        if hook.gives_context and CONTEXT in names[:count]:
            yield (
                f"Op {op.name!r}: {hook.name} has {CONTEXT!r} in the place of another argument, "
                f"see {hook.forms}. For the request's context write it behind a star: "
                f"(self, {', '.join(hook.most[: hook.least])}, *, {CONTEXT})."
            )


def _doubt(op: Op, cls: type, name: str) -> str:
    """Return the warning about a method's name; "" if there is nothing to say."""
    what = f"Op {op.name!r}: {cls.__qualname__}.{name} is never called"
    for hook in _EVERY:
        if name == hook.name:
            if hook in _hooks_of(op) or not issubclass(cls, Op):
                return ""
            kind = next(k.__name__ for k in (RequestOp, ResponseOp, Op) if isinstance(op, k))
            return f"{what}: {kind} has no such method."
        if name.startswith("_") or hook not in _hooks_of(op) or overrides(op, hook.name):
            continue
        if _is_one_slip(_plain(name), _plain(hook.name)):
            return f"{what}: is {hook.name} meant? If not, give it a name that differs more."
    return ""


def _hooks_of(op: Op) -> tuple[Hook, ...]:
    if isinstance(op, RequestOp):
        return (*_OF_ALL, UNPACK)
    return (*_OF_ALL, PACK) if isinstance(op, ResponseOp) else _OF_OPS


def _is_one_slip(one: str, other: str) -> bool:
    """Return whether two names differ by at most one letter, or by two swapped letters."""
    start = _alike(one, other)
    one, other = one[start:], other[start:]
    end = _alike(one[::-1], other[::-1])
    one, other = one[: len(one) - end], other[: len(other) - end]
    return max(len(one), len(other)) <= 1 or (len(one) == 2 and one == other[::-1])


def _alike(one: str, other: str) -> int:
    """Return the length of the common prefix."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def _plain(name: str) -> str:
    return name.lower().replace("_", "")


def _mentioned_in(cls: type) -> Iterator[str]:
    """Return all names in the code of a class's methods."""
    for value in vars(cls).values():
        code = getattr(getattr(value, "__func__", value), "__code__", None)
        if isinstance(code, CodeType):
            yield from _names_of(code)


def _names_of(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names_of(constant)
        elif isinstance(constant, str):  # for example of a getattr
            yield constant
