"""Forms: what is put in comes out, however it is cut, and what is broken is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import PackageError, TooLargeError
from pipeline.frontends.api import multipart
from pipeline.frontends.api.multipart import fields_of_form, without_views
from pipeline.proto.slices import Limits

TYPE = b'multipart/form-data; boundary="a b"'
NAMES = st.text("abcü_[]", min_size=1, max_size=4)


def form(parts):
    pieces = [
        b'--a b\r\nContent-Disposition: form-data; name="%b"%b\r\n\r\n%b\r\n'
        % (name.encode(), more, content)
        for name, more, content in parts
    ]
    return b"".join(pieces) + b"--a b--"


@given(st.dictionaries(NAMES, st.binary(max_size=60), max_size=4), NAMES.map(str.strip))
def test_files_are_parsed_unchanged(files, name):
    parts = [(key, b'; filename="%b"' % name.encode(), content) for key, content in files.items()]
    assert fields_of_form(form(parts), TYPE, Limits()) == files


@given(st.dictionaries(NAMES, st.text("aü\r\n-", max_size=20), max_size=4))
def test_texts_are_parsed_unchanged(texts):
    parts = [(key, b"", text.encode()) for key, text in texts.items()]
    assert fields_of_form(form(parts), TYPE, Limits()) == texts


@given(st.binary(max_size=80))
def test_a_broken_form_is_refused(body):
    with pytest.raises(PackageError):
        fields_of_form(body, TYPE, Limits())


def test_a_form_that_is_cut_anywhere_is_refused():
    whole = form([("x", b'; filename="a"', b"1" * 20), ("y", b"", b"2")])
    for at in range(len(whole) - 1):
        with pytest.raises(PackageError):
            fields_of_form(whole[:at], TYPE, Limits())


HEADS = st.sampled_from(
    [
        *(b"", b'; filename="a%20b"', b'; filename=""', b"; filename=a", b"; x=1"),
        *(b"\r\nContent-Type: text/plain", b"\r\nContent-Type: application/json"),
        *(b"\r\nContent-Type: image/png", b"\r\nContent-Type: text/plain; charset=utf-8"),
        *(b'; filename="a"\r\nContent-Type: application/json', b"\r\ncontent-type: image/png"),
    ]
)
CONTENTS = st.text("1a\r\n-\0 b", max_size=12).map(str.encode)


def outcome(body):
    try:
        return fields_of_form(body, TYPE, Limits())
    except (PackageError, TooLargeError) as error:
        return str(error)


@given(
    st.lists(st.tuples(NAMES, HEADS, CONTENTS), max_size=4),
    st.sampled_from([b"", b"\r\n", b"\r\nmore", b"-"]),
    st.lists(st.integers(0, 200), max_size=2),
    st.sampled_from([bytes, memoryview]),
)
def test_the_quick_path_of_a_form_equals_the_parser(parts, end, missing, kind):
    """Also one in a view, which is searched in slices and whose files are views."""
    body = form(parts) + end
    for at in missing:
        body = body[:at] + body[at + 1 :]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(multipart, "SLICE_BYTES", 5)
        patch.setattr(multipart, "_LONG_BYTES", 4)
        result = outcome(kind(body))
        patch.setattr(multipart, "_FEW", 0)  # none is so short that it counts as ordinary
        assert result == outcome(body)


def test_long_files_of_a_form_in_a_view_stay_there():
    long, whole = bytes(range(256)) * 400, []
    files = [("x", long), ("x", long[1:]), ("y", long), ("z", b"short")]
    whole = form([(name, b'; filename="a"', content) for name, content in files])
    fields = fields_of_form(memoryview(whole), TYPE, Limits())
    assert [type(item) for item in (*fields["x"], fields["y"], fields["z"])] == [memoryview] * 3 + [
        bytes
    ]
    assert [item.obj is whole for item in fields["x"]] == [True, True]
    copied = {name: without_views(value) for name, value in fields.items()}
    assert copied == {"x": [long, long[1:]], "y": long, "z": b"short"}
    assert [type(item) for item in (*copied["x"], copied["y"])] == [bytes] * 3


def test_a_form_has_so_many_parts_and_no_more():
    with pytest.raises(TooLargeError, match="more than 1000 parts"):
        fields_of_form(form([("x", b"", b"")] * 1001), TYPE, Limits())


@pytest.mark.parametrize(
    "body",
    [b"nothing", b"--a b!", b"--a b\r\nno header\r\n", form([("x", b"", b"1")])[:-2] + b"?", b""],
)
def test_broken_forms_are_not_logged(body, caplog, capfd):
    with caplog.at_level("DEBUG"), pytest.raises(PackageError):
        fields_of_form(body, TYPE, Limits())
    assert caplog.records == []
    assert capfd.readouterr().err == ""
