"""BoundSchema: a schema that is prepared at the start for a RequestOp or ResponseOp."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import msgspec
import numpy as np
from msgspec import inspect

from pipeline.errors import (
    ConfigError,
    PackageError,
    PayloadTypeError,
    PipelineError,
    described,
    one_line,
    printable,
)
from pipeline.proto.pipeline.array_text import text_to_numpy
from pipeline.schema.arrays import components_of, hints_of_dict, made_array, rule_of
from pipeline.schema.faults import failed, fault, path_of
from pipeline.schema.kinds import (
    REFERENCE,
    alternatives,
    found_name,
    is_array,
    is_list,
    is_nested,
    name_of,
    of_object,
    plain,
    within,
    without_objects,
)

_TEXT = (inspect.StrType, inspect.AnyType)
_NUMBERS = (inspect.IntType, inspect.FloatType, inspect.BoolType, inspect.NoneType)
_ARRAY = "array("  # the beginning of an array as text


class BoundSchema(Protocol):
    """A schema of a request or of an answer.

    Attributes:
        name: name of the user's type.
        is_quick: whether its checks run no user code.
    """

    name: str
    is_quick: bool

    def check(self, fields: dict[str, Any], is_text: bool = False) -> dict[str, Any]:
        """Return a request's values for the Ops: all keys of the schema, converted.

        `is_text`: numbers are text, lists and objects are JSON. Raises PackageError with the path,
        the found type and the expected one.
        """

    def check_answer(self, fields: dict[str, Any]) -> dict[str, Any]:
        """Return an answer with the schema's defaults. Raises PayloadTypeError."""

    def json_schema(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the JSON schema, and the schemas that it refers to, by name."""


class _Field(msgspec.Struct, frozen=True):
    """One key of a schema; `name` is the Op's name for it."""

    key: str
    name: str
    has_arrays: bool
    is_array: bool  # an array, or a union with one
    reads_json: bool
    is_number: bool
    takes_bytes: bool
    is_bytes: bool  # bytes, or bytes and null
    expected: str
    default: Callable[[], Any] | None


class MsgspecSchema:
    """BoundSchema of a Struct, a TypedDict or a dataclass.

    Raises:
        ConfigError: it is another type, or contains an unsupported type.
    """

    def __init__(self, schema: Any) -> None:
        self.name: str = getattr(schema, "__name__", str(schema))
        self._schema = schema
        self._is_dict = hints_of_dict(schema)
        self._keeps_others = getattr(schema, "__extra_items__", None) is Any  # PEP 728
        try:
            self._kind = inspect.type_info(schema)
            self._rule = rule_of(schema)
            self._refusal_of({}, is_text=False)
        except Exception as error:  # the user's types may raise anything
            raise ConfigError(f"schema {self.name}: {described(error)}") from error
        if not isinstance(
            self._kind, inspect.StructType | inspect.TypedDictType | inspect.DataclassType
        ):
            raise _no_schema(schema)
        kinds = list(within(self._kind))
        for kind in kinds:
            if isinstance(kind, inspect.CustomType) and not is_array(kind):
                raise ConfigError(f"schema {self.name}: {kind.cls} is not supported in a schema")
        self.is_quick: bool = not any(
            hasattr(getattr(kind, "cls", None), "__post_init__") for kind in kinds
        )
        self._fields = tuple(map(_field_of, of_object(self._kind)))

    def check(self, fields: dict[str, Any], is_text: bool = False) -> dict[str, Any]:
        """Return what the Ops see; see BoundSchema."""
        given = self._given(fields, is_text)
        converted = self._converted(given, is_text, PackageError)
        if self._is_dict:
            return {**given, **converted} if self._keeps_others else dict(converted)
        values = {field.name: getattr(converted, field.name) for field in self._fields}
        return {name: value for name, value in values.items() if value is not msgspec.UNSET}

    def check_answer(self, fields: dict[str, Any]) -> dict[str, Any]:
        """Return what is answered; see BoundSchema."""
        answer = without_objects(fields)
        given = {**answer}
        for field in self._fields:
            if field.key not in given:
                continue
            value = given[field.key]
            if isinstance(value, np.ndarray) and value.size == 1 and not field.is_array:
                value = value.reshape(())[()]
                answer = {**answer, field.key: value}
            if not (field.has_arrays and type(value) is np.ndarray):
                given[field.key] = plain(value, field.has_arrays)
        self._converted(given, False, PayloadTypeError, f"the answer is not a valid {self.name}: ")
        missing = {
            field.key: field.default()
            for field in self._fields
            if field.key not in answer and field.default is not None
        }
        return {**answer, **without_objects(missing)} if missing else answer

    def json_schema(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return it as JSON schema; see BoundSchema."""
        return components_of(self._schema, self._kind)

    def _converted(
        self, given: dict[str, Any], is_text: bool, refusal: type[PipelineError], before: str = ""
    ) -> Any:
        try:
            converted = msgspec.convert(
                given, self._schema, strict=not is_text, dec_hook=made_array
            )
            return converted if self._rule is None else self._rule(converted)
        except (msgspec.ValidationError, ValueError) as error:
            raise refusal(before + self._fault(error, given, is_text)) from None
        except PipelineError:
            raise
        except Exception as error:
            raise failed(self.name, error) from error

    def _given(self, fields: dict[str, Any], is_text: bool) -> dict[str, Any]:
        """Return values for msgspec: parsed JSON for text, lists or one element for arrays."""
        given = fields
        for field in self._fields:
            value = fields.get(field.key)
            if isinstance(value, np.ndarray | np.generic):
                changed = _of_array(field, value)
            elif (
                is_text
                and type(value) is str
                and (field.reads_json or (field.is_number and value.startswith(_ARRAY)))
            ):
                changed = _of_text(field, value)
            elif type(value) is bytes and not field.takes_bytes:
                changed = _text_of(value)
            elif is_text and type(value) is str and field.is_bytes:
                changed = "".join(value.split())  # base64 in lines, as base64(1) writes it
            else:
                continue
            given = {**fields} if given is fields else given
            given[field.key] = changed
        return given

    def _fault(self, error: Exception, given: Any, is_text: bool) -> str:
        return fault(str(error), given, self._kind, lambda value: self._refusal_of(value, is_text))

    def _refusal_of(self, value: Any, is_text: bool) -> str:
        """Return msgspec's error for a value; "" if it fits."""
        try:
            msgspec.convert(value, self._schema, strict=not is_text, dec_hook=made_array)
        except msgspec.ValidationError as error:
            return str(error)
        return ""


def _field_of(field: inspect.Field) -> _Field:
    kinds = alternatives(field.type)
    is_nested_only = any(map(is_nested, kinds)) and not any(isinstance(k, _TEXT) for k in kinds)
    default: Callable[[], Any] | None = None
    if field.default_factory is not msgspec.NODEFAULT:
        default = field.default_factory
    elif field.default is not msgspec.NODEFAULT and field.default is not msgspec.UNSET:
        default = lambda: field.default  # noqa: E731
    return _Field(
        field.encode_name,
        field.name,
        any(map(is_array, within(field.type))),
        any(is_list(kind) or is_array(kind) or isinstance(kind, inspect.AnyType) for kind in kinds),
        is_nested_only,
        all(isinstance(kind, _NUMBERS) for kind in kinds),
        any(isinstance(kind, inspect.BytesType | inspect.AnyType) for kind in kinds),
        all(isinstance(kind, inspect.BytesType | inspect.NoneType) for kind in kinds),
        name_of(field.type),
        default,
    )


def _of_array(field: _Field, value: Any) -> Any:
    """Convert an array to its only element for a number, to its elements for a list."""
    if field.has_arrays:
        return np.asarray(value)
    if field.is_bytes and value.dtype == np.uint8:
        return value.tobytes()
    if not field.is_array and value.size == 1:
        value = value.item()
        is_text = isinstance(value, bytes) and not field.takes_bytes
        return _text_of(value) if is_text else value
    return value.tolist()


def _text_of(value: bytes) -> Any:
    """Return bytes as text if they are UTF-8."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value


def _of_text(field: _Field, text: str) -> Any:
    """Return the list, object or array in a text."""
    try:
        if text.startswith(_ARRAY):
            return _of_array(field, text_to_numpy(text))
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, PackageError, RecursionError) as error:
        what = one_line(str(error))
        raise PackageError(
            f"{field.key}: expected {field.expected}, found a text that is invalid: {what}"
        ) from None


def _no_schema(schema: Any) -> ConfigError:
    return ConfigError(
        f"schema {one_line(repr(schema))} is not a type for a request or an answer: write a class "
        "derived from pipeline.Schema, a TypedDict, a dataclass, a msgspec.Struct or a model of "
        "pydantic"
    )


def bind(schema: Any) -> BoundSchema:
    """Return the checker of a schema. Raises ConfigError: it is not a schema."""
    if is_model(schema):
        return ModelSchema(schema)
    if not isinstance(schema, type):
        raise _no_schema(schema)
    return MsgspecSchema(schema)


# Pydantic models, recognised by their methods: this library does not import pydantic ------------


def is_model(schema: Any) -> bool:
    """Return whether a class is a pydantic model, or has its methods."""
    return isinstance(schema, type) and all(
        callable(getattr(schema, name, None)) for name in ("model_validate", "model_json_schema")
    )


class ModelSchema:
    """BoundSchema of a pydantic model, with pydantic's rules: it accepts text as a number.

    Its validators are user code, so it runs on threads.
    """

    is_quick: bool = False

    def __init__(self, schema: Any) -> None:
        self.name: str = schema.__name__
        self._schema = schema

    def check(self, fields: dict[str, Any], is_text: bool = False) -> dict[str, Any]:
        """Return what the Ops see; see BoundSchema."""
        given = {key: self._given(key, value) for key, value in fields.items()}
        try:
            model = self._schema.model_validate(given)
        except Exception as error:
            raise _refused(self.name, error, PackageError, "") from error
        return {name: getattr(model, name) for name in _names(model)}

    def check_answer(self, fields: dict[str, Any]) -> dict[str, Any]:
        """Return what is answered; see BoundSchema."""
        answer: dict[str, Any] = without_objects(fields)
        given = {key: self._given(key, value) for key, value in answer.items()}
        try:
            model = self._schema.model_validate(given)
        except Exception as error:
            before = f"the answer is not a valid {self.name}: "
            raise _refused(self.name, error, PayloadTypeError, before) from error
        more = {name: getattr(model, name) for name in _names(model) if name not in answer}
        return {**answer, **without_objects(more)} if more else answer

    def json_schema(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return it as JSON schema; see BoundSchema."""
        schema = dict(self._schema.model_json_schema(ref_template=REFERENCE + "{model}"))
        components = dict(schema.pop("$defs", {}))
        components[self.name] = schema
        return {"$ref": REFERENCE + self.name}, components

    def _given(self, key: str, value: Any) -> Any:
        kind = getattr(getattr(self._schema, "model_fields", {}).get(key), "annotation", None)
        if isinstance(value, np.ndarray) and kind is np.ndarray:
            return value
        if isinstance(value, np.ndarray) and value.size == 1 and kind in (int, float, str, bool):
            return value.item()
        return plain(value, keeps_arrays=False)


def _names(model: Any) -> list[str]:
    return list(getattr(type(model), "model_fields", None) or vars(model))


def _refused(name: str, error: Exception, kind: type[PipelineError], before: str) -> PipelineError:
    """Return pydantic's first error in this library's form; other errors with their text."""
    errors = getattr(error, "errors", None)
    faults: Sequence[Any] = errors() if callable(errors) else ()
    if not faults:
        return failed(name, error)
    first = faults[0]
    steps = [step for step in first.get("loc", ()) if isinstance(step, str | int)]
    reason = printable(one_line(str(first.get("msg", error))))
    is_there = first.get("type") != "missing"
    there = found_name(first.get("input")) if is_there else "nothing"
    more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
    reason = reason[:1].lower() + reason[1:]
    return kind(f"{before}{path_of(steps)}: {reason}, found {there}{more}")
