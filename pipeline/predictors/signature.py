"""A model's signature: checks feeds and fetches before a local engine runs.

An engine's own error comes late and in its own words, and some input it misreads silently:
onnxruntime reads big-endian numbers as native ones and `S` text as longer text.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, NoReturn

import ml_dtypes
import numpy as np

from pipeline.errors import InitError, InputError, PackageError, PayloadTypeError
from pipeline.predictors.base import TEXT, Dim, TensorSpec, listed
from pipeline.proto.codec import text_to_numpy
from pipeline.proto.lists import as_array

LOD = ".lod"
"""Suffix of level-of-detail offsets in feeds and answers: `x.lod` for `x`."""

_BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
_PLAIN = (
    bool,
    int,
    float,
    list,
    tuple,
    np.generic,
)  # with str, the types of values from JSON and texts
_TEXT_KINDS = "OSTU"  # object, bytes, StringDType, str

_ANY_RANK = -1


class _Slot(NamedTuple):
    """One input, prepared for its check. Without a dtype (text), each element is checked."""

    name: str
    dtype: np.dtype[Any] | None
    rank: int
    fixed: tuple[tuple[int, int], ...]
    spec: TensorSpec


class ModelSignature:
    """The inputs of one model, and the outputs that can be fetched.

    Args:
        fetch_list: the outputs to fetch by default; all if empty.
        takes_bytes: whether the model gets `bytes` among text unchanged, so they need not be UTF-8.
        checks_shapes: False if the engine accepts shapes that the model does not declare.
        options: optional inputs, which have default values in the model.

    Raises InitError: `fetch_list` names an output that is not in `outputs`.
    """

    def __init__(
        self,
        model: str,
        inputs: Sequence[TensorSpec],
        outputs: Sequence[TensorSpec],
        fetch_list: Sequence[str] | None = None,
        takes_bytes: bool = False,
        checks_shapes: bool = True,
        options: Sequence[TensorSpec] = (),
    ) -> None:
        self.model = model
        self._text_types = (str, bytes) if takes_bytes else (str,)
        self.inputs: tuple[TensorSpec, ...] = tuple(inputs)
        self.outputs: tuple[TensorSpec, ...] = tuple(outputs)
        self.feed_names: tuple[str, ...] = tuple(spec.name for spec in inputs)
        self._output_names = tuple(spec.name for spec in outputs)
        self._known_outputs = frozenset(self._output_names)
        self.fetch_names: tuple[str, ...] = tuple(fetch_list or self._output_names)
        unknown = [name for name in self.fetch_names if name not in self._known_outputs]
        if unknown:
            raise InitError(
                f"[{model}] fetch_list: unexpected inference output {unknown[0]!r}, allowed "
                f"outputs are: {listed(self._output_names, most=16)}"
            )
        self.options: tuple[TensorSpec, ...] = tuple(options)
        self._slots = tuple(_slot(spec, checks_shapes) for spec in inputs)
        self._optional_slots = tuple(_slot(spec, checks_shapes) for spec in options)

    def odd_shapes(self, arrays: Mapping[str, np.ndarray]) -> str:
        """Return an addition to an engine's error: the inputs with undeclared shapes."""
        odd = [
            f"feed {spec.name!r} has shape {_shape(array.shape)}, the model declares "
            f"{_shape(spec.shape or ())}"
            for spec in self.inputs
            if (array := arrays.get(spec.name)) is not None
            and not _fits(array.shape, *_slot(spec)[2:4])
        ]
        return "; ".join(odd)

    def fetch(self, names: Sequence[str] | None) -> Sequence[str]:
        """Return the names to fetch: `names`, or the default when there are none.

        Raises InputError: the model lacks a name.
        """
        if not names:
            return self.fetch_names
        if isinstance(names, str):
            names = (names,)
        for name in names:
            if name not in self._known_outputs:
                raise InputError(
                    f"[{self.model}] invalid arg list: fetch names {_listed(names)} "
                    f"do not match the model's {_listed(self._output_names)}"
                )
        return names

    def feed(self, feed: Any, batch: bool = True) -> dict[str, np.ndarray]:
        """Return the arrays to run on, in the model's dtypes; `feed` itself does not change.

        Numbers are cast within their kind or to a wider kind (int to float, not float to int); text
        becomes an object array of str; numbers and lists, as in JSON, become arrays. With `batch`
        False each array gets a first axis.

        Raises:
            InputError: a name is missing, or a dtype, value or shape does not fit.
            PayloadTypeError: `feed` is not a dict, or a value cannot become an array.
        """
        if feed.__class__ is not dict:
            feed = only_feed(self.model, feed)
        slots = self._slots
        if self._optional_slots:
            slots += tuple(slot for slot in self._optional_slots if slot.name in feed)
        arrays = {}
        for name, dtype, rank, fixed, spec in slots:
            try:
                value = feed[name]
            except KeyError:
                self._refuse_names(feed)
            # This runs for every batch: an array that needs no change costs no more.
            if value.__class__ is not np.ndarray or value.dtype is not dtype or not batch:
                value = self._adapted(spec, value, batch)
            if not _fits(value.shape, rank, fixed):
                self._refuse_shape(spec, value)
            arrays[name] = value
        return arrays

    def _adapted(self, spec: TensorSpec, value: Any, batch: bool) -> np.ndarray:
        """Return `value` as an array of the input's dtype; the shape is not checked."""
        if not isinstance(value, np.ndarray):
            value = self._as_array(spec, value, batch)
        value = np.asarray(value)  # not a subclass of ndarray
        array = self._as_text(spec, value) if spec.dtype == TEXT else self._as_numbers(spec, value)
        return array if batch else array[np.newaxis]

    def _as_array(self, spec: TensorSpec, value: Any, batch: bool) -> np.ndarray:
        """Return a number, a text, or lists of them as an array."""
        if isinstance(value, str | bytes) and spec.dtype == TEXT:  # a single text
            axes = len(spec.shape or ()) - (not batch)
            return np.array(value, object).reshape((1,) * max(axes, 0))
        if isinstance(value, str):  # pairs have numbers as text
            with suppress(PackageError):
                return np.asarray(text_to_numpy(value))
        if not isinstance(value, _PLAIN):
            self._refuse_type(spec, value)
        try:
            array = as_array(value)
        except ValueError:
            raise InputError(
                f"[{self.model}] feed {spec.name!r} has lists of different lengths: they do not "
                "form an array"
            ) from None
        if array.dtype.hasobject and spec.dtype != TEXT:
            self._refuse_type(spec, value)
        return array if array.size else array.astype(spec.dtype)

    def _as_numbers(self, spec: TensorSpec, value: np.ndarray) -> np.ndarray:
        if value.dtype == spec.dtype:
            return value
        if spec.dtype == _BFLOAT16 and value.dtype == np.uint16:
            return value.view(_BFLOAT16)  # numpy has no bfloat16: as in Paddle, these are its bits
        is_signed_for_unsigned = value.dtype.kind == "i" and spec.dtype.kind == "u"
        if not is_signed_for_unsigned and not np.can_cast(value.dtype, spec.dtype, "same_kind"):
            self._refuse_dtype(spec, value)
        try:
            with np.errstate(over="raise"):
                cast = value.astype(spec.dtype)
        except FloatingPointError as error:
            raise self._overflow(spec, value) from error
        # An integer that does not fit wraps silently: compare if that is possible.
        may_wrap = spec.dtype.kind in "iu" and not np.can_cast(value.dtype, spec.dtype, "safe")
        is_negative = is_signed_for_unsigned and bool((value < 0).any())
        if is_negative or (may_wrap and not np.array_equal(cast, value)):
            raise self._overflow(spec, value)
        return cast

    def _as_text(self, spec: TensorSpec, value: np.ndarray) -> np.ndarray:
        """Return an object array in which every element is a str; bytes are read as UTF-8."""
        if value.dtype.kind not in _TEXT_KINDS:
            self._refuse_dtype(spec, value)
        array = np.asarray(value).astype(object)
        flat = array.reshape(-1)
        for index, text in enumerate(flat):
            if not isinstance(text, self._text_types):
                flat[index] = self._decoded(spec, text)
        return flat.reshape(array.shape)

    def _decoded(self, spec: TensorSpec, element: object) -> str:
        if not isinstance(element, bytes):
            raise PayloadTypeError(
                f"[{self.model}] feed {spec.name!r} is text: its elements must be str, "
                f"but get {type(element)}"
            )
        try:
            return element.decode()
        except UnicodeDecodeError as error:
            raise PayloadTypeError(
                f"[{self.model}] feed {spec.name!r} is text: {element[:32]!r} is not UTF-8"
            ) from error

    def _refuse_names(self, feed: Mapping[str, Any]) -> NoReturn:
        missing = [name for name in self.feed_names if name not in feed]
        raise InputError(
            f"[{self.model}] invalid arg list: feed names {_listed(feed)} do not match "
            f"the model's {_listed(self.feed_names)}: missing {_listed(missing)}"
        ) from None

    def _refuse_type(self, spec: TensorSpec, value: object) -> NoReturn:
        wanted = "np.ndarray or list[str]" if spec.dtype == TEXT else "np.ndarray"
        raise PayloadTypeError(
            f"[{self.model}] feed_batch must be npdata: the value of {spec.name!r} must be "
            f"{wanted}, but get {type(value)}"
        )

    def _refuse_dtype(self, spec: TensorSpec, value: np.ndarray) -> NoReturn:
        wanted = "text" if spec.dtype == TEXT else str(spec.dtype)
        raise InputError(
            f"[{self.model}] feed {spec.name!r} has dtype {value.dtype}, which is not cast to "
            f"the model's {wanted}: cast it in preprocess if no value changes"
        )

    def _refuse_shape(self, spec: TensorSpec, value: np.ndarray) -> NoReturn:
        raise InputError(
            f"[{self.model}] feed {spec.name!r} has shape {_shape(value.shape)}, "
            f"the model wants {_shape(spec.shape or ())}"
        )

    def _overflow(self, spec: TensorSpec, value: np.ndarray) -> InputError:
        return InputError(
            f"[{self.model}] feed {spec.name!r} holds {value.dtype} values that do not fit "
            f"into the model's {spec.dtype}"
        )


def only_feed(model: str, feed: Any) -> Mapping[str, Any]:
    """Return the dict in `feed`: `feed` itself, or the only dict in a list.

    Raises:
        InputError: it is a list of another length.
        PayloadTypeError: it is not a dict.
    """
    if isinstance(feed, (list, tuple)):
        if len(feed) != 1:
            raise InputError(
                f"[{model}] one feed a call, but get a list of {len(feed)}: "
                "call predict for each, or merge their arrays along the first axis"
            )
        feed = feed[0]
    if not isinstance(feed, Mapping):
        raise PayloadTypeError(
            f"[{model}] feed must be a dict of input name to np.ndarray, but get {type(feed)}"
        )
    return feed


def are_offsets(flat: np.ndarray, rows: int) -> bool:
    """Return whether a 1-D array has the starts of sequences, and finally the number of rows."""
    return (
        flat.dtype.kind in "iu"
        and flat.size > 0
        and bool(flat[0] == 0)
        and bool(flat[-1] == rows)
        and not (flat[1:] < flat[:-1]).any()  # differences of unsigned numbers are never negative
    )


def refuse_unknown_arguments(legacy: Mapping[str, Any]) -> None:
    """Accept the arguments of older clients that have no effect.

    Raises:
        InputError: `need_variant_tag=True`, which asks for another form of the answer.
        TypeError: no version of `predict` had the argument.
    """
    unknown = sorted(legacy.keys() - {"logid", "need_variant_tag"})
    if unknown:
        raise TypeError(f"predict() got unknown arguments: {_listed(unknown)}")
    if legacy.get("need_variant_tag"):
        raise InputError("predict(need_variant_tag=True): there are no variants of local models")


def _slot(spec: TensorSpec, checks_shapes: bool = True) -> _Slot:
    dtype = None if spec.dtype == TEXT else spec.dtype
    if not spec.shape or not checks_shapes:  # a scalar may have v2's dimensions
        return _Slot(spec.name, dtype, _ANY_RANK, (), spec)
    fixed = tuple((axis, dim) for axis, dim in enumerate(spec.shape) if isinstance(dim, int))
    return _Slot(spec.name, dtype, len(spec.shape), fixed, spec)


def _fits(shape: tuple[int, ...], rank: int, fixed: tuple[tuple[int, int], ...]) -> bool:
    """Return whether a shape has the rank and the fixed sizes."""
    if rank not in (len(shape), _ANY_RANK):
        return False
    for axis, size in fixed:  # noqa: SIM110 - all() would build a generator for every batch
        if shape[axis] != size:
            return False
    return True


def _shape(shape: Sequence[Dim]) -> str:
    return "(" + ", ".join("?" if dim is None else str(dim) for dim in shape) + ")"


def _listed(names: Iterable[str]) -> str:
    return f"[{listed([repr(name) for name in names], most=16)}]"


# Inputs without elements ------------------------------------------------------------------------


def answer_without_rows(
    signature: ModelSignature,
    arrays: Mapping[str, np.ndarray],
    names: Sequence[str],
    can_infer: bool = True,
) -> dict[str, np.ndarray] | None:
    """Return the outputs `names`, which are empty, for an empty input; None if no input is empty.

    Args:
        arrays: the inputs of the model.
        can_infer: whether the outputs follow from their shapes.

    Raises InputError: it is unknown whether an output is empty.
    """
    for array in arrays.values():  # runs for every batch: the usual case allocates nothing
        if not array.size:
            break
    else:
        return None
    name = next(name for name, array in arrays.items() if not array.size)
    shapes = _output_shapes(signature, arrays, names) if can_infer else {}
    for output in names:
        if math.prod(shapes.get(output, (1,))):
            raise InputError(
                f"[{signature.model}] feed {name!r} has shape {arrays[name].shape}, no elements, "
                f"and the model does not say what {output!r} is then: skip the call, or set "
                "takes_empty: true (a parameter of config.pbtxt, a key of local_service_conf) if "
                "the model can be run on nothing; some end the process"
            )
    dtypes = {spec.name: spec.dtype for spec in signature.outputs}
    return {output: np.empty(shapes[output], dtypes[output]) for output in names}


def _output_shapes(
    signature: ModelSignature, arrays: Mapping[str, np.ndarray], names: Sequence[str]
) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the outputs whose dimensions are all known."""
    sizes: dict[Dim, int] = {}
    for spec in signature.inputs:
        for dim, size in zip(spec.shape or (), arrays[spec.name].shape, strict=False):
            if isinstance(dim, str):
                sizes.setdefault(dim, size)
    outputs = [spec for spec in signature.outputs if spec.name in names]
    batches = all(map(has_batch, (*signature.inputs, *outputs)))
    rows = {len(arrays[spec.name]) for spec in signature.inputs} if batches else set()
    shapes = {}
    for spec in outputs:
        dims = [dim if isinstance(dim, int) else sizes.get(dim) for dim in spec.shape or (None,)]
        if dims[0] is None and rows == {0}:
            dims[0] = 0
        known = tuple(dim for dim in dims if dim is not None)
        if len(known) == len(dims):
            shapes[spec.name] = known
    return shapes


def has_batch(spec: TensorSpec) -> bool:
    """Return whether the first dimension may have any size, as a batch dimension has."""
    return bool(spec.shape and not isinstance(spec.shape[0], int))
