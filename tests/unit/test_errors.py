from __future__ import annotations

import grpc
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline import errors
from pipeline.answer_head import AnswerHead
from pipeline.errors import (
    ErrorCode,
    InputError,
    OverloadedError,
    PipelineError,
    PredictorUnavailableError,
    ProductError,
    coded_error,
    error_from_fields,
    error_from_wire,
    error_to_fields,
    grpc_status_of,
    http_status_of,
)

OURS = [
    kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, PipelineError)
]


def there_and_back(error: PipelineError) -> PipelineError:
    data = msgspec.msgpack.encode(error_to_fields(error))
    fields = tuple[str, int, str, int | None, AnswerHead | None]
    return error_from_fields(*msgspec.msgpack.decode(data, type=fields))


def made(kind: type[PipelineError], text: str = "what happened") -> PipelineError:
    return ProductError(51, text) if issubclass(kind, ProductError) else kind(text)


@pytest.mark.parametrize("kind", OURS)
def test_each_of_our_classes_is_restored(kind):
    error = there_and_back(made(kind))
    assert type(error) is kind
    assert error.code == made(kind).code
    assert str(error) == "what happened"


@given(st.sampled_from(OURS), st.integers(-(2**63) + 1, 2**63 - 1), st.text())
def test_a_code_set_on_an_error_is_restored(kind, code, text):
    error = made(kind, text)
    error.code = code
    back = there_and_back(error)
    assert (type(back), back.code, str(back)) == (kind, code, text)


@given(st.integers(), st.text(st.characters()))
def test_any_code_and_any_text_of_a_product_can_travel(code, text):
    error = there_and_back(ProductError(code, text))
    assert type(error) is ProductError
    if code.bit_length() <= 63:
        assert error.code == code
    else:
        assert error.code == ErrorCode.PRODUCT_ERROR
        assert str(error).startswith(f"[{code}] ")


@pytest.mark.parametrize("code", [2**63, -(2**63) - 1, 2**64, 10**100])
def test_a_code_that_is_too_long_is_moved_into_the_text(code):
    error = there_and_back(ProductError(code, "no face"))
    assert (error.code, str(error)) == (50, f"[{code}] no face")


def test_the_head_of_an_error_is_restored():
    error = ProductError(51, "later")
    error.head = AnswerHead(429, (("retry-after", "5"),))
    assert there_and_back(error).head == error.head
    assert (http_status_of(error), grpc_status_of(error)) == (429, "RESOURCE_EXHAUSTED")


def test_an_error_with_a_custom_code_has_the_statuses_of_that_code():
    error = there_and_back(coded_error(6000, "too late"))
    assert type(error) is PipelineError
    assert (error.code, error.http_status, error.grpc_status) == (6000, 504, "DEADLINE_EXCEEDED")


@pytest.mark.parametrize("kind", OURS)
def test_every_class_has_statuses_that_there_are(kind):
    assert kind.http_status in (400, 404, 413, 499, 500, 501, 503, 504)
    assert hasattr(grpc.StatusCode, kind.grpc_status)


def test_invalid_unicode_is_escaped():
    assert str(there_and_back(InputError("file \udcff"))) == r"file \udcff"


def test_a_users_class_is_restored_as_its_base_in_the_library():
    class NoFace(ProductError):
        def __init__(self):
            super().__init__(51, "no face")

    class TooWide(InputError):
        code = 5001

    class Flaky(PredictorUnavailableError):
        pass

    face, wide, flaky = map(there_and_back, (NoFace(), TooWide("x"), Flaky("x")))
    assert (type(face), face.code, str(face)) == (ProductError, 51, "no face")
    assert (type(wide), wide.code) == (InputError, 5001)
    assert type(flaky) is PredictorUnavailableError
    assert InputError.code == 5000, "the code is the one error's, not its class's"


def test_a_users_class_with_a_name_of_the_library_is_not_confused_with_it():
    """A DeadlineError would have the request started again."""
    for name in ("DeadlineError", "ProductError", "WorkerDiedError"):
        theirs = type(name, (InputError,), {})
        assert type(there_and_back(theirs("x"))) is InputError


def test_the_class_of_a_peers_error_is_that_of_its_code():
    assert type(error_from_wire(5000, "x")) is InputError
    product = error_from_wire(51, "x")
    assert (type(product), product.code) == (ProductError, 51)


@given(st.integers(0, 2**31 - 1))
def test_retry_after_is_restored(retry_after_s):
    error = there_and_back(OverloadedError("no place", retry_after_s))
    assert isinstance(error, OverloadedError)
    assert error.retry_after_s == retry_after_s
