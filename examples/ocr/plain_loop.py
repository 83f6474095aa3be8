"""Reads pages in plain processes, without the framework: the baseline of benchmark.py.

    python plain_loop.py [PICTURE ...] [--config FILE] [--processes N] [--seconds S]

Prints pages/s, and the memory of one process.
"""

from __future__ import annotations

import argparse
import importlib
import multiprocessing
import time
from collections.abc import Callable, Sequence
from itertools import cycle
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import NamedTuple

import numpy as np
from models import read_characters, read_config
from ocr_pre_post.detection import detector_input, find_boxes
from ocr_pre_post.layout import along_the_text, reading_order, upside_down
from ocr_pre_post.orientation import classifier_input, is_upside_down
from ocr_pre_post.picture import read_picture, settle_opencv
from ocr_pre_post.recognition import (
    LINES_A_CALL,
    Reading,
    cut_line,
    in_order,
    mini_batches,
    read_lines,
)

HERE = Path(__file__).resolve().parent
START_S = 120.0

Run = Callable[[np.ndarray], np.ndarray]


class Pace(NamedTuple):
    """The speed of all processes together, the CPU time of a page, and the private memory."""

    pages_per_s: float
    cpu_ms_a_page: float
    mib_each: float


class PageReader:
    """Reads pages one by one: detect, cut, recognise."""

    def __init__(self, config: Path) -> None:
        settle_opencv()
        ops = read_config(config)["op"]
        paths = {name: ops[name]["local_service_conf"]["model_config"] for name in ops}
        self._detect = load_model(paths["det"])
        self._classify = load_model(paths["cls"])
        self._recognise = load_model(paths["rec"])
        self._characters = read_characters(paths["rec"])

    def read(self, sent: str | bytes) -> list[Reading]:
        """Return the lines of a page, in reading order."""
        image, _ = read_picture(sent)
        boxes = find_boxes(self._detect(detector_input(image))[0, 0], *image.shape[:2])
        boxes = along_the_text(boxes)
        if len(boxes) and is_upside_down(self._classify(classifier_input(image, boxes))):
            boxes = upside_down(boxes)
        lines = [cut_line(image, boxes[place]) for place in reading_order(boxes)]
        batches = mini_batches(lines, LINES_A_CALL)
        readings = [read_lines(self._recognise(batch.x), self._characters) for batch in batches]
        return in_order([batch.places for batch in batches], readings)


def load_model(path: str) -> Run:
    """Return a model with one thread, on onnxruntime or paddle.inference."""
    return _onnx_model(path) if path.endswith(".onnx") else _paddle_model(Path(path))


def _onnx_model(path: str) -> Run:
    runtime = importlib.import_module("onnxruntime")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = runtime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    (entry,) = session.get_inputs()
    return lambda x: session.run(None, {entry.name: x})[0]


def _paddle_model(folder: Path) -> Run:
    inference = importlib.import_module("paddle.inference")
    config = inference.Config(
        str(folder / "inference.pdmodel"), str(folder / "inference.pdiparams")
    )
    config.disable_gpu()
    config.enable_mkldnn()
    config.set_cpu_math_library_num_threads(1)
    config.enable_memory_optim()
    config.disable_glog_info()
    predictor = inference.create_predictor(config)
    entry = predictor.get_input_handle(predictor.get_input_names()[0])
    result = predictor.get_output_handle(predictor.get_output_names()[0])

    def run(x: np.ndarray) -> np.ndarray:
        entry.copy_from_cpu(x)
        predictor.run()
        output = result.copy_to_cpu()
        # Otherwise it keeps gigabytes of intermediate tensors, for every width of a line.
        predictor.clear_intermediate_tensor()
        return output

    return run


def measure(files: Sequence[bytes], config: Path, processes: int, seconds: float) -> Pace:
    """Measure several processes that read these files in a loop."""
    context = multiprocessing.get_context("spawn")
    together = context.Barrier(processes)
    results = context.SimpleQueue()
    workers = [
        context.Process(target=_work, args=(files, config, seconds, together, results.put))
        for _ in range(processes)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
        if worker.exitcode:
            raise RuntimeError(f"a process of the loop ended with exit code {worker.exitcode}")
    paces = [results.get() for _ in workers]
    rates, cpu_ms, mib = zip(*paces, strict=True)
    return Pace(sum(rates), sum(cpu_ms) / processes, sum(mib) / processes)


def _work(
    files: Sequence[bytes],
    config: Path,
    seconds: float,
    together: Barrier,
    report: Callable[[Pace], None],
) -> None:
    reader = PageReader(config)
    for file in files:
        reader.read(file)
    together.wait(START_S)
    start = now = time.monotonic()
    start_cpu, pages = time.process_time(), 0
    for file in cycle(files):
        reader.read(file)
        pages, now = pages + 1, time.monotonic()
        if now - start >= seconds:
            break
    cpu_ms = (time.process_time() - start_cpu) * 1000
    report(Pace(pages / (now - start), cpu_ms / pages, own_mib("self")))


def own_mib(pid: int | str) -> float:
    """Return the private memory of a process, in MiB."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_")) / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("pictures", nargs="*", type=Path)
    parser.add_argument("--config", type=Path, default=HERE / "config.yml")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=10)
    arguments = parser.parse_args()
    pictures = arguments.pictures or [HERE / "pictures" / "page.png"]
    files = [path.read_bytes() for path in pictures]
    pace = measure(files, arguments.config, arguments.processes, arguments.seconds)
    print(
        f"{arguments.processes} processes: {pace.pages_per_s:.2f} pages/s, "
        f"{pace.cpu_ms_a_page:.0f} ms of CPU a page, {pace.mib_each:.0f} MiB each"
    )


if __name__ == "__main__":
    main()
