"""The OCR service: `det` finds the lines of text, `cls` which way is up, `rec` reads them.

    python web_server.py        then in another terminal: client.py

    image -> det -+----------+-> rec -> {text, lines}
                  \\-> cls --/

Options: `--config config_paddle.yml` for Paddle's engine; `--mode thread|process`: where the Ops
run.
"""

import argparse
import json
from pathlib import Path
from typing import Annotated

import msgspec
from models import read_characters, read_config
from ocr_pre_post.detection import detector_input, find_boxes
from ocr_pre_post.layout import along_the_text, reading_order, upside_down
from ocr_pre_post.orientation import classifier_input, is_upside_down
from ocr_pre_post.picture import PictureError, read_picture, settle_opencv
from ocr_pre_post.recognition import (
    LINES_A_CALL,
    cut_line,
    in_order,
    mini_batches,
    read_lines,
)

from pipeline import Op, PipelineServer, ProductError, RequestOp, ResponseOp, Schema

HERE = Path(__file__).resolve().parent
SURE = 0.5  # lines that were read with a lower score are left out


class Picture(Schema):
    """A picture with text in it."""

    image: Annotated[bytes, msgspec.Meta(description="a JPEG, PNG, BMP or WebP file")]


class Page(Schema):
    """The text in a picture."""

    text: Annotated[str, msgspec.Meta(description="the lines, one below the other")]
    lines: Annotated[
        str,
        msgspec.Meta(
            description="JSON: a list of the lines, the text, score and box (4 corners) of each",
            examples=['[{"text": "Rye", "score": 0.98, "box": [[5, 5], [9, 5], [9, 7], [5, 7]]}]'],
        ),
    ]


class DetOp(Op):
    """Finds the lines: `boxes` float32 (n, 4, 2), each from the corner where its text may begin."""

    def init_op(self):
        settle_opencv()

    def preprocess(self, input_dicts, data_id, log_id):
        ((_, request),) = input_dicts.items()
        try:
            self.picture = read_picture(request.get("image"))
        except PictureError as error:
            raise ProductError(error.code, str(error)) from None
        return {"x": detector_input(self.picture.image)}, False, None, ""

    def postprocess(self, input_dicts, fetch_data, data_id, log_id):
        (text_map,) = fetch_data.values()
        image, scale = self.picture
        boxes = along_the_text(find_boxes(text_map[0, 0], *image.shape[:2]))
        return {"image": image, "scale": scale, "boxes": boxes}, None, ""


class ClsOp(Op):
    """Detects a page that is upside down; its longest lines vote."""

    def init_op(self):
        settle_opencv()

    def preprocess(self, input_dicts, data_id, log_id):
        page = input_dicts["det"]
        if not len(page["boxes"]):
            return {}, True, None, ""  # an empty page: skip the model
        return {"x": classifier_input(page["image"], page["boxes"])}, False, None, ""

    def postprocess(self, input_dicts, fetch_data, data_id, log_id):
        votes = list(fetch_data.values())
        return {"upside_down": bool(votes) and is_upside_down(*votes)}, None, ""


class RecOp(Op):
    """Reads the lines, a mini-batch at a time."""

    def init_op(self):
        settle_opencv()
        self.characters = read_characters(self.model_config)

    def preprocess(self, input_dicts, data_id, log_id):
        page, is_turned = input_dicts["det"], input_dicts["cls"]["upside_down"]
        boxes = upside_down(page["boxes"]) if is_turned else page["boxes"]
        self.boxes = boxes[reading_order(boxes)]
        batches = mini_batches([cut_line(page["image"], box) for box in self.boxes], LINES_A_CALL)
        self.places = [batch.places for batch in batches]
        return [{"x": batch.x} for batch in batches], False, None, ""

    def process(self, feed_batch, typical_logid):
        # The model's answer is a megabyte for each line: reduce it in the worker.
        (probabilities,) = super().process(feed_batch, typical_logid).values()
        return {"readings": read_lines(probabilities, self.characters)}

    def postprocess(self, input_dicts, fetch_data, data_id, log_id):
        scale = input_dicts["det"]["scale"]
        readings = in_order(self.places, [result["readings"] for result in fetch_data])
        lines = [
            {
                "text": reading.text,
                "score": round(reading.score, 4),
                "box": (box * scale).round().astype(int).tolist(),
            }
            for reading, box in zip(readings, self.boxes, strict=True)
            if reading.score >= SURE
        ]
        text = "\n".join(line["text"] for line in lines)
        return {"text": text, "lines": json.dumps(lines, ensure_ascii=False)}, None, ""


def configuration():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--config", type=Path, default=HERE / "config.yml")
    parser.add_argument(
        "--mode",
        choices=("thread", "process"),
        help="where Ops run; default: as in the configuration",
    )
    arguments = parser.parse_args()
    config = read_config(arguments.config)
    if arguments.mode:
        config["dag"]["is_thread_op"] = arguments.mode == "thread"
    return config


read_op = RequestOp(schema=Picture)
det_op = DetOp(name="det", input_ops=[read_op])
cls_op = ClsOp(name="cls", input_ops=[det_op])
rec_op = RecOp(name="rec", input_ops=[det_op, cls_op])
response_op = ResponseOp(input_ops=[rec_op], schema=Page)

server = PipelineServer(name="ocr")
server.set_response_op(response_op)
server.prepare_server(yml_dict=configuration())
server.run_server()
