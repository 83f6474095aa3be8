"""Models of pydantic as schemas, known by their methods: pydantic is the user's own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from pipeline.errors import PackageError, PayloadTypeError, PipelineError, one_line, printable
from pipeline.schema.faults import failed, path_of
from pipeline.schema.kinds import found_name, plain, without_objects

REFERENCE = "#/components/schemas/"


def is_model(schema: Any) -> bool:
    """Return whether a class is a model of pydantic, or speaks as one."""
    return isinstance(schema, type) and all(
        callable(getattr(schema, name, None)) for name in ("model_validate", "model_json_schema")
    )


class ModelSchema:
    """BoundSchema of a model of pydantic, whose rules are pydantic's: text of a number is one.

    Its validators are the user's own code, so it is asked in threads.
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
            before = f"the answer is no {self.name}: "
            raise _refused(self.name, error, PayloadTypeError, before) from error
        more = {name: getattr(model, name) for name in _names(model) if name not in answer}
        return {**answer, **without_objects(more)} if more else answer

    def json_schema(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return it as JSON schema; see BoundSchema."""
        found = dict(self._schema.model_json_schema(ref_template=REFERENCE + "{model}"))
        components = dict(found.pop("$defs", {}))
        components[self.name] = found
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
    """Return pydantic's first complaint in our words; of what is none, what it says."""
    errors = getattr(error, "errors", None)
    found: Sequence[Any] = errors() if callable(errors) else ()
    if not found:
        return failed(name, error)
    first = found[0]
    steps = [step for step in first.get("loc", ()) if isinstance(step, str | int)]
    said = printable(one_line(str(first.get("msg", error))))
    is_there = first.get("type") != "missing"
    there = found_name(first.get("input")) if is_there else "nothing"
    more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
    said = said[:1].lower() + said[1:]
    return kind(f"{before}{path_of(steps)}: {said}, found {there}{more}")
