"""Triton's own suites (`qa/`), run against `python -m pipeline repository`.

Each suite is run by its own `test.sh`, in namespaces of its own: there /opt/tritonserver holds the
suites and a `tritonserver` that starts ours, /data the models that Triton's generators make for
ONNX, and the network is a loopback interface, so that the ports which the suites expect are free.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pipeline import __version__

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "interop" / "triton_suites"
TABLE = ROOT / "interop" / "triton_suites.md"
PACKAGES = (
    "tritonclient[all]",
    "aiohttp",
    "boofuzz",
    "jax",
    "ml_dtypes",
    "numpy",
    "onnx",
    "pillow",
    "prettytable",
    "psutil",
    "pytest",
    "pytest-asyncio",
    "pytest-timeout",
    "requests",
    "sseclient-py",
    "torch",
)
VERSION = "models"
"""The version of the models in /data/inferenceserver, as the suites' scripts get it."""
STAND_INS = "stand_ins"
"""The version that also has the ONNX models under the names of models for libtorch and TensorRT."""

RESULTS = '''
"""Write a line of JSON for each case that unittest or pytest runs, and for some programs."""
import atexit, json, os, re, sys, unittest

def _write(case, outcome, text=""):
    line = {"script": os.path.basename(sys.argv[0]), "case": case, "outcome": outcome, "text": text}
    with open(os.environ["SUITE_RESULTS"], "a") as file:
        file.write(json.dumps(line) + "\\n")

def _watch(method, outcome):
    inner = getattr(unittest.TestResult, method)
    def watched(self, test, *reason):
        text = str(reason[0][1] if reason and isinstance(reason[0], tuple) else "".join(reason))
        _write(test.id(), outcome, text[:500])
        return inner(self, test, *reason)
    setattr(unittest.TestResult, method, watched)

def _watch_subtests():
    inner = unittest.TestResult.addSubTest
    def watched(self, test, subtest, error):
        if error is not None:
            _write(subtest.id(), "failed", str(error[1])[:500])
        return inner(self, test, subtest, error)
    unittest.TestResult.addSubTest = watched

def pytest_runtest_logreport(report):
    if report.when == "call" or report.outcome != "passed":
        text = getattr(getattr(report.longrepr, "reprcrash", None), "message", "")
        _write(report.nodeid, report.outcome, text[:500])

def _watch_program():
    errors = []
    leave, hook = sys.exit, sys.excepthook
    def left(status=None):
        errors.extend([str(status)] if status else [])
        leave(status)
    def raised(kind, error, trace):
        errors.append(repr(error))
        hook(kind, error, trace)
    def ended():
        if re.search(os.environ["SUITE_PROGRAMS"], sys.argv[0]):
            _write(sys.argv[0], "failed" if errors else "passed", "".join(errors))
    sys.exit, sys.excepthook = left, raised
    atexit.register(ended)

if os.environ.get("SUITE_PROGRAMS") and "SUITE_RESULTS" in os.environ:
    _watch_program()
if "SUITE_RESULTS" in os.environ:
    _watch("addSuccess", "passed")
    _watch("addFailure", "failed")
    _watch("addError", "failed")
    _watch("addSkip", "skipped")
    _watch_subtests()
'''

SHM_MONITOR = '''
"""Python models here have no shared memory of their own that could leak."""

class SharedMemoryManager:
    def __init__(self, name):
        self.name = name

    def free_memory(self):
        return 0
'''

GENERATED = {
    "qa_model_repository": "gen_qa_models.py --onnx",
    "qa_variable_model_repository": "gen_qa_models.py --onnx --variable",
    "qa_identity_model_repository": "gen_qa_identity_models.py --onnx",
    "qa_reshape_model_repository": "gen_qa_reshape_models.py --onnx --variable",
    "qa_sequence_model_repository": "gen_qa_sequence_models.py --onnx",
    "qa_variable_sequence_model_repository": "gen_qa_sequence_models.py --onnx --variable",
    "qa_sequence_implicit_model_repository": "gen_qa_implicit_models.py --onnx",
    "qa_variable_sequence_implicit_model_repository": "gen_qa_implicit_models.py --onnx --variable",
    "qa_sequence_initial_state_implicit_model_repository": (
        "gen_qa_implicit_models.py --onnx --initial-state zero"
    ),
    "qa_variable_sequence_initial_state_implicit_model_repository": (
        "gen_qa_implicit_models.py --onnx --initial-state zero --variable"
    ),
    "qa_dyna_sequence_model_repository": "gen_qa_dyna_sequence_models.py --onnx",
    "qa_dyna_sequence_implicit_model_repository": (
        "gen_qa_dyna_sequence_implicit_models.py --onnx"
    ),
    "qa_ragged_model_repository": "gen_qa_ragged_models.py --onnx",
    "qa_scalar_models": "gen_qa_ort_scalar_models.py",
    "qa_ensemble_model_repository/qa_model_repository": "gen_qa_models.py --ensemble",
    "qa_ensemble_model_repository/qa_variable_model_repository": (
        "gen_qa_models.py --ensemble --variable"
    ),
    "qa_ensemble_model_repository/qa_reshape_model_repository": (
        "gen_qa_reshape_models.py --ensemble"
    ),
    "qa_ensemble_model_repository/qa_identity_model_repository": (
        "gen_qa_identity_models.py --ensemble"
    ),
    "qa_ensemble_model_repository/qa_sequence_model_repository": (
        "gen_qa_sequence_models.py --ensemble"
    ),
    "qa_ensemble_model_repository/qa_variable_sequence_model_repository": (
        "gen_qa_sequence_models.py --ensemble --variable"
    ),
}
"""Folders of models, and the generator in qa/common that writes each."""

EXAMPLES = {
    "L0_data_compression": "simple",
    "L0_grpc": "simple simple_dyna_sequence simple_int8 simple_identity simple_sequence "
    "simple_string",
    "L0_http": "simple simple_dyna_sequence simple_identity simple_sequence simple_string",
    "L0_https": "simple",
    "L0_secure_grpc": "simple",
    "L0_shared_memory": "simple",
    "L0_simple_example": "simple",
}
"""The example models that Triton's image copies into a suite's folder `models`."""

TEST_MODELS = {
    "L0_decoupled": "repeat_int32 square_int32",
    "L0_grpc_state_cleanup": "repeat_int32",
}
"""The models of src/test/models that Triton's image copies into a suite's folder `models`."""

LIBRARIES = (
    "custom_models/custom_dyna_sequence_int32/1/libtriton_dyna_sequence.so",
    "custom_models/custom_sequence_int32/1/libtriton_sequence.so",
)
"""Files that scripts copy; stand-ins in interop/triton_backends serve their models."""


@dataclass(frozen=True)
class Suite:
    """A folder of `qa/`, and what its script needs here.

    Attributes:
        name: the folder, or a folder within it.
        environment: variables that its script reads.
        edits: pairs of a pattern and its replacement, for the scripts, tests and configurations.
        excluded: reasons by a pattern of the names of cases that need a card, another backend, or
            contradict a documented decision.
        limit_s: the suite is ended when it has taken this long.
        version: of the models: VERSION or STAND_INS.
        programs: pattern of programs in Python whose exit status is a case.
    """

    name: str
    environment: dict[str, str] = field(default_factory=dict)
    edits: tuple[tuple[str, str], ...] = ()
    excluded: dict[str, str] = field(default_factory=dict)
    limit_s: float = 900.0
    version: str = VERSION
    programs: str = ""


ONNX = {"BACKENDS": "onnx", "ENSEMBLES": "0"}
PYTHON = {
    "BACKEND_DIR": "/opt/tritonserver/backends",
    "CUDA_VISIBLE_DEVICES": "0",
    "DATADIR": f"/data/inferenceserver/{VERSION}",
    "MODELDIR": "/opt/tritonserver/qa/L0_backend_python",
    "PYTHON_ENV_VERSION": "11",
    "PYTEST_TIMEOUT": "600",
    "SERVER": "/opt/tritonserver/bin/tritonserver",
    "TEST_JETSON": "0",
    "TEST_WINDOWS": "0",
    "TRITON_DIR": "/opt/tritonserver",
}
"""The variables that L0_backend_python/test.sh exports for the scripts of its parts."""

PYTHON_PARTS = (
    "argument_validation async_execute bls custom_metrics decoupled ensemble examples io "
    "lifecycle logging model_control model_readiness parameters python_based_backends "
    "request_rescheduling response_sender restart"
)
MODEL_EDITS = (
    (r'"cuda(:0)?"', '"cpu"'),
    (r"\.cuda\(\)", ".cpu()"),
    (r".*torch\.cuda\.memory_summary.*\n", ""),
    (r"( *# Checking the same with the GPU tensors(.*\n)+?)(?=    def )", ""),
    (r"assertFalse\(output\.is_cpu\(\)\)", "assertTrue(output.is_cpu())"),
    (r'bls_libtorch\("libtorch_cpu", "GPU"\)', 'bls_libtorch("libtorch_cpu", "CPU")'),
    ("OUTPUT__", "OUTPUT"),
    ("KIND_GPU", "KIND_CPU"),
)
"""Edits of Python models and their configurations, which keep their tensors in host memory."""

_TORCH = "libtorch_float32_float32_float32"
WITHOUT_LIBTORCH = (
    ("libtorch_nobatch_", "onnx_nobatch_"),
    (
        rf"cp -r (\S+)/{_TORCH}/ ./models\n",
        rf"cp -r \1/{_TORCH.replace('libtorch', 'onnx_nobatch')} models/{_TORCH}; "
        rf"sed -i 's/OUTPUT__/OUTPUT/; s/onnx_nobatch_/libtorch_/' models/*/config.pbtxt\n",
    ),
    ("KIND_GPU", "KIND_CPU"),
)
WITHOUT_STUB_OR_CARD = (
    (r"for SIGNAL in 11 9", "for SIGNAL in"),  # kills Triton's stub
    (r"POOL_SIZE_MB in 64 256 ", "POOL_SIZE_MB in 256 "),  # of the card's memory
    (r"cp examples/instance_kind/config.pbtxt models/resnet50/", "rm -r models/resnet50"),
    (r"INSTANCE_KIND_MAX_RETRIES=3", "INSTANCE_KIND_MAX_RETRIES=0"),  # downloads ResNet50
)
PYTHON_EXCLUDED = {
    r"test_invalid_character_model_names": "a model may have any name that a folder may have",
    r"bls_ignore_cancel": "a call that its model cancels ends at once",
    r"RestartTest": "reads the free memory of the shared-memory region of Triton's stub",
    r"PythonBasedBackendsTest": "needs PyTorch's backend",
}
ON_CPU = ((r"KIND_GPU", "KIND_CPU"), (r"in cpu gpu;", "in cpu;"))
PATIENT = r"lt_ms = thresholds\[0\]", r"\g<0> and 4 * thresholds[0]"
"""Makes upper limits of times longer: the cores may be shared."""
TAKES_EMPTY = r"""
for config in models/onnx*/config.pbtxt; do
    echo 'parameters { key: "takes_empty" value { string_value: "true" } }' >> $config
done
create_nop"""
DENSENET = r"""
cp -r models/simple_identity models/densenet_onnx
sed -i 's/simple_identity/densenet_onnx/' models/densenet_onnx/config.pbtxt
"""
"""Stands for a model that the image downloads; the index has it."""

WITHOUT_DATA_COMPRESSOR = (
    (r".*\$DATA_COMPRESSOR_TEST >>.*", ""),
    (r"python3 validation.py validate_compressed_data", ""),
)
CLIENT_IN_CPP = (
    r"\$(SIMPLE_CLIENT|TEST_CLIENT|CLIENT_TIMEOUT_TEST_CPP) -.*\n"
    r"\s*(if \[.*\n(?!\s*fi\n)(.*\n)*?\s*fi\n\s*)+"
)
"""A run of a client in C++, and what its end and its log have to be."""

DECOUPLED = r"""
for model in models/*; do mkdir -p $model/1; done
cp -r models python_models
git clone python_backend
for name in repeat square; do
    source=python_backend/examples/decoupled/$name model=python_models/${name}_int32
    cp ${source}_model.py $model/1/model.py
    cp ${source}_config.pbtxt $model/config.pbtxt
done
rm -f *.log
"""
"""Models that the image has in the suite's folder."""

SUM_AND_DIFFERENCE = r"""
  rm -r $MODELDIR/libtorch*/[23] $MODELDIR/libtorch*/1/model.onnx
  cp ../python_models/sub_add/model.py $MODELDIR/libtorch_nobatch_int32_int32_int32/1
  sed -i 's/^platform.*/backend: "python"/' $MODELDIR/libtorch*/config.pbtxt
"""
"""A model for any number of elements, in the place of libtorch's."""

METRICS_OF_MACHINE = r"### CPU / RAM metrics tests(.*\n)*?(?=### Metric Config CLI)"
REPEAT = r"""mkdir -p $MODELSDIR/repeat_int32/1
cat > $MODELSDIR/repeat_int32/config.pbtxt << EOL
backend: "repeat"
input [
  { name: "IN" data_type: TYPE_INT32 dims: [ -1 ] },
  { name: "DELAY" data_type: TYPE_UINT32 dims: [ -1 ] },
  { name: "WAIT" data_type: TYPE_UINT32 dims: [ 1 ] }
]
output [
  { name: "OUT" data_type: TYPE_INT32 dims: [ 1 ] },
  { name: "IDX" data_type: TYPE_UINT32 dims: [ 1 ] }
]
model_transaction_policy { decoupled: True }
EOL
"""
RESNET = r"""
mkdir -p $MODEL_DIR/resnet_v1_50/1
echo VULTURE > $MODEL_DIR/resnet_v1_50/labels.txt
cat > $MODEL_DIR/resnet_v1_50/config.pbtxt << EOL
backend: "python"
max_batch_size: 32
input [ { name: "input:0" data_type: TYPE_FP32 dims: [ 224, 224, 3 ] } ]
output [ {
  name: "resnet_v1_50/predictions/Softmax:0" data_type: TYPE_FP32 dims: [ 1 ]
  label_filename: "labels.txt"
} ]
EOL
cat > $MODEL_DIR/resnet_v1_50/1/model.py << EOL
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([self.output(request)]) for request in requests]

    def output(self, request):
        ones = np.ones((len(request.inputs()[0].as_numpy()), 1), np.float32)
        return pb_utils.Tensor("resnet_v1_50/predictions/Softmax:0", ones)
EOL
"""
"""A model with one class."""

INSTANCES_ON_CPU = r"""
sed -i 's/KIND_GPU/KIND_CPU/; /gpus: 0/d' autofill_noplatform_success/*/*/expected*
sed -i 's/count: 1/count: 2/' autofill_noplatform_success/onnx/*/expected*
\g<0>"""
"""Makes the expected instances those of a machine without a card."""

CASES_OF_LOG = r"""
python3 - $CLIENT_LOG >> $SUITE_RESULTS << 'EOL'
import json, re, sys
for case in re.split("^Test ", open(sys.argv[1]).read(), flags=re.M)[1:]:
    name, _, text = case.partition("\\n")
    outcome = "failed" if "*** FAILED" in text else "passed"
    print(json.dumps({"script": "test.sh", "case": name, "outcome": outcome, "text": text}))
EOL
exit $RET"""
"""Writes the outcomes of a script's own cases, which have no framework."""

IDENTITY = r"""
mkdir -p models/identity_fp32/1
cat > models/identity_fp32/config.pbtxt << EOL
name: "identity_fp32"
backend: "python"
max_batch_size: 64
input [ { name: "INPUT0" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ -1 ] } ]
EOL
cat > models/identity_fp32/1/model.py << EOL
import triton_python_backend_utils as pb_utils

PARAMETERS = {
    "param0": "an example string parameter",
    "param1": 42,
    "param2": False,
}

class TritonPythonModel:
    def initialize(self, args):
        self.family = pb_utils.MetricFamily(
            "input_byte_size_counter", "Bytes of the inputs", pb_utils.MetricFamily.COUNTER
        )
        labels = {"model": args["model_name"], "version": args["model_version"]}
        self.input_bytes = self.family.Metric(labels=labels)

    def execute(self, requests):
        return [self.response(request.inputs()[0].as_numpy()) for request in requests]

    def response(self, values):
        self.input_bytes.increment(values.nbytes)
        outputs = [pb_utils.Tensor("OUTPUT0", values)]
        return pb_utils.InferenceResponse(outputs, parameters=PARAMETERS)
EOL
cp -r ./models ./all_models"""
"""The model that Triton's image has from the repository of the identity backend."""

SIMPLE = r"""
for version in 1 2; do
    mkdir -p models/simple/$version
    cp ../L0_simple_example/models/simple/1/model.onnx models/simple/$version
done
rm -f $CLIENT_LOG """
SUITES = [
    Suite(
        "L0_backend_python",
        PYTHON,
        (
            (r'python3 --version \| grep "3\.[^"]*"', "echo"),
            (r"\(bash -ex setup_python_enviroment.sh\)", ""),
            (r"for TEST in \$\{SUBTESTS\}", "for TEST in"),  # they have rows of their own
            (r"def test_growth_error", "def growth_error"),  # of shared memory above 1 GiB
        ),
        {
            "dlpack_tensor_error|gpu_tensor": "needs a card",
            "bf16": "`as_numpy` of BF16 is an array",
        },
        limit_s=1800.0,
    ),
    *(
        Suite(
            f"L0_backend_python/{name}",
            PYTHON,
            (*WITHOUT_LIBTORCH, *WITHOUT_STUB_OR_CARD),
            PYTHON_EXCLUDED,
            limit_s=1800.0,
            programs=r"^examples/.*client\.py" if name == "examples" else "",
        )
        for name in PYTHON_PARTS.split()
    ),
    Suite("L0_backend_config", excluded={"": "backends have no settings of their own"}),
    Suite(
        "L0_backend_identity",
        edits=(
            (r"\ncp -r \./models \./all_models", IDENTITY),
            (r" *param3 = .*\n", ""),  # Triton's Python backend has no such parameters either
            (r"if param3 != .*", "if False:"),
        ),
        programs=r"identity_test\.py",
    ),
    Suite("L0_batch_custom", excluded={"": "strategies of batches in C++"}),
    Suite("L0_batch_input", ONNX),
    Suite("L0_batcher", ONNX, ON_CPU, limit_s=3600.0),
    Suite("L0_buffer_attributes", excluded={"": "needs a card"}),
    Suite("L0_client_memory_growth", edits=((r"in c\+\+ python;", "in python;"),), limit_s=3600.0),
    Suite("L0_client_nobatch"),
    Suite(
        "L0_client_timeout",
        edits=((CLIENT_IN_CPP, ""),),
        excluded={"client_non_infer|NonInfer": "Triton's switch that delays answers"},
    ),
    Suite(
        "L0_cmdline_trace",
        edits=((r"TRACE_SUMMARY=", r"TRACE_SUMMARY='python3 ../common/trace_summary.py' #"),),
    ),
    Suite("L0_config_json"),
    Suite("L0_custom_model_config"),
    Suite("L0_data_compression", edits=WITHOUT_DATA_COMPRESSOR),
    Suite(
        "L0_decoupled",
        edits=(
            (r"\nrm -f \*\.log\n", DECOUPLED),
            (r"  \(cd \$MODELDIR/libtorch", SUM_AND_DIFFERENCE + r"\g<0>"),
            (r"for test in \\\n(.*\\\n)+.*; do", "for test in test_one_to_one; do"),
            ('TRIALS="python custom"', "TRIALS=python"),  # the others are stand-ins in Python
            ("PUT__", "PUT"),
        ),
        limit_s=7200.0,
        version=STAND_INS,
    ),
    Suite("L0_dyna_implicit_state", ONNX),
    Suite("L0_dyna_sequence_batcher", ONNX),
    Suite(
        "L0_grpc",
        edits=((r"# Add string_dyna_sequence model", DENSENET),),
        excluded={"many_elements": "more than `max_text_elements`", "cuda": "needs a card"},
    ),
    Suite("L0_grpc_state_cleanup"),
    Suite(
        "L0_http",
        edits=(
            (r"# Add string_dyna_sequence model", DENSENET),
            (r"repeat_request_count = 100", "repeat_request_count = 1"),
        ),
        excluded={
            "test_byte_too_many_elements": "text alone is also for inputs of shape [-1]",
            "json_recursion_depth_limit": "lists have at most 64 levels, in other words",
            "test_content_encoding_chunked_manually": "Content-Length beside chunks is refused",
            "negative_dimensions|oversized_file": "400, Triton 500",
            "index_deeply_nested_json": "settings have at most 64 KiB",
            "raw_binary": "raw bodies may have `max_message_bytes`",
            "over_max_chunks": "any number of chunks",
            "cuda": "needs a card",
        },
        limit_s=1800.0,
    ),
    Suite(
        "L0_http_fuzz",
        edits=(
            (r"\nfunction_install_python38\n", "\n"),
            (r"session\.fuzz\(\)", "session.fuzz(max_depth=1)"),  # else it takes days
            (r"in url_list:", "in url_list[::5]:"),
        ),
        limit_s=3600.0,
    ),
    Suite("L0_https", edits=((CLIENT_IN_CPP, ""),)),
    Suite(
        "L0_implicit_state",
        {**ONNX, "MODEL_TRIALS": "0 2"},
        (
            (r"\ncp \./libtriton.*", ""),
            (r"mkdir -p models/growable_memory/1/", "rm -r models/*state* models/growable_memory"),
            (r"(cat \$\{CLIENT_LOG\})\n    exit 1", r"\1"),
        ),
        {"implicit_state|no_update": "a backend in C++"},
        limit_s=1800.0,
    ),
    Suite("L0_infer", {"BACKENDS": "onnx python"}, ON_CPU),
    Suite(
        "L0_infer_reshape",
        edits=((r"(def _trt_reshape\([^)]*\):)", r"\1\n        return"),),
        version=STAND_INS,
    ),
    Suite("L0_infer_variable", {}, ON_CPU, version=STAND_INS),
    Suite(
        "L0_infer_zero",
        {"BACKENDS": "onnx"},
        (("create_nop", TAKES_EMPTY),),
    ),
    Suite("L0_initializer_as_input", ONNX),
    Suite(
        "L0_input_validation",
        edits=(
            ('backend: "pytorch"', 'backend: "identity"'),
            (r"cp -r \$DATADIR/qa_shapetensor.*\n", ""),
        ),
        excluded={
            "test_wrong_input_shape_tensor_size": "needs TensorRT",
            "test_input_string_shape": "of two wrong inputs, Triton reports the other one",
        },
    ),
    Suite("L0_io"),
    Suite(
        "L0_iterative_sequence",
        edits=((r"\nrm -fr \*\.log", r"\nmkdir -p models/iterative_sequence/1\g<0>"),),
        excluded={"test_reschedule_error": "a rescheduled request runs again at once"},
    ),
    Suite(
        "L0_large_payload",
        edits=(
            ("--log-verbose=1", f"--http-max-input-size={2**31 - 1}"),
            ("for TARGET in onnx libtorch plan python", "for TARGET in onnx python"),
            (r"1\.9 \*", "0.9 *"),  # a client with 1.9 GiB and a server need 24 GiB
            (
                r"random\.random\(very_large_tensor_shape\)",
                "zeros(very_large_tensor_shape, np.int8)",
            ),
        ),
        limit_s=1800.0,
        version=STAND_INS,
    ),
    Suite(
        "L0_lifecycle",
        {"TRITON_SERVER_VERSION": __version__},
        (
            *ON_CPU,
            ("SLEEP_TIME=10", "SLEEP_TIME=30"),
            (r"\nACTUAL_LOAD_UNLOAD_ORDER=.*", ""),  # words of Triton's log
        ),
        excluded={
            "different_platform": "needs TensorRT",
            "test_model_reload_fail|gpu_limit": "needs a card",
            "shutdown_with_live_connection": "a server that stops closes idle connections",
        },
        limit_s=3600.0,
        version=STAND_INS,
    ),
    Suite(
        "L0_long_running_stress",
        {"BACKENDS": "onnx"},
        (
            ("TEST_DURATION=25000", "TEST_DURATION=3600"),
            (r"cp -r \S+resnet_v1_50 .*\n.*\n.*\n", RESNET),
            (r"1 \* \(1024 \* 1024 \* 1024\)", "200 * 1024 * 1024"),  # by each of 8 threads
        ),
        limit_s=4800.0,
    ),
    Suite("L0_logging", excluded={"log_format_test": "lines of the log have one form"}),
    Suite(
        "L0_metrics",
        edits=(*ON_CPU, (METRICS_OF_MACHINE, "")),
        excluded={
            "inf_histograms_exist": "first responses are measured of models with parts",
            "cache_summaries_exist": "no summaries of caches",
            "with_namespace_on": "a namespace is part of the model's name",
            "test_ensemble_decoupled": "whole numbers are written with a point",
        },
        version=STAND_INS,
    ),
    Suite(
        "L0_model_config",
        edits=(
            (r'TRIALS=".*"', 'TRIALS="onnxruntime_onnx"'),
            (r"ls -d (autofill_\w+)/\*/\*", r"ls -d \1/{common,custom,ensemble,onnx,python}/*"),
            (r"\^[EWI](\[0-9\]){4}\.\*", ""),
            (r"\nrm -f \$SERVER_LOG_BASE\*", INSTANCES_ON_CPU),
            (r"`ls noautofill_platform`(?=; do\n.*--disable-auto)", ""),  # has the same effect
            (r"\nexit \$RET", CASES_OF_LOG),
        ),
        excluded={
            "custom_parameters": "needs TensorRT",
            "negative_gpu": "needs a card",
            "invalid_runtime|runtime_escape": "libraries in C++",
        },
        limit_s=5400.0,
        version=STAND_INS,
    ),
    Suite("L0_model_namespacing"),
    Suite(
        "L0_model_queue",
        edits=(PATIENT,),
        excluded={"test_policy_reject": "a failed request of an ensemble counts once"},
    ),
    Suite(
        "L0_model_update",
        edits=ON_CPU,
        excluded={
            "gpu_cpu_instance|with_ongoing_sequences": "needs a card",
            "instance_resource_decrease": "the log of resources has other words",
        },
    ),
    Suite("L0_nan_inf", edits=((r"np\.NINF", "-np.inf"),)),
    Suite(
        "L0_nullchar_string",
        edits=((r"\nMODELS=.*", '\nMODELS="python_string"'), (r"\ncp .*libtorch.*", "")),
    ),
    Suite("L0_optional_input"),
    Suite("L0_orca", excluded={"": "needs TensorRT-LLM"}),
    Suite("L0_output_name", version=STAND_INS),
    Suite("L0_output_validation", excluded={"": "needs PyTorch's backend"}),
    Suite("L0_parameters"),
    Suite(
        "L0_perf_pyclients",
        edits=((r"\nRET=0", r"\nmkdir -p custom_models/custom_zero_1_int32/1\g<0>"),),
        programs=r"simple_perf_client\.py",
    ),
    Suite("L0_priority", excluded={"": "needs TensorRT"}),
    Suite("L0_python_client_unit_tests", excluded={"cuda": "needs a card"}),
    Suite("L0_query", excluded={"": "backends in C++ ask for output buffers"}),
    Suite("L0_rate_limiter", edits=((r'echo "kind: KIND_GPU', 'echo "kind: KIND_CPU'),)),
    Suite("L0_repoagent_checksum", excluded={"": "repository agents are libraries in C++"}),
    Suite(
        "L0_request_cancellation",
        excluded={
            "before_finish|before_response_complete": "Triton's switch that delays answers",
            "at_step_start": "reads Triton's log",
        },
    ),
    Suite(
        "L0_response_cache",
        edits=((r"\$UNIT_TEST >>", "true >>"), (r"LEAKCHECK=/usr/bin/valgrind", "exit $RET")),
    ),
    Suite(
        "L0_response_statistics",
        excluded={"": "times that a backend in C++ reports; Triton's Python backend reports none"},
    ),
    Suite("L0_scalar_io"),
    Suite("L0_secure_grpc", edits=((CLIENT_IN_CPP, ""),)),
    Suite("L0_sequence_batcher", {**ONNX, "MODEL_TRIALS": "0 2"}, limit_s=3600.0),
    Suite("L0_sequence_corrid_batcher", version=STAND_INS),
    Suite("L0_sequence_stress", limit_s=1800.0),
    Suite(
        "L0_server_status",
        {"TRITON_SERVER_VERSION": __version__},
        excluded={
            "latest_infer": "the platform of stand-ins",
            "ServerMetadataTest.test_basic": "shared memory is off unless asked for",
            "stats_no_model": "counts all models of the repository, without stand-ins",
        },
        version=STAND_INS,
    ),
    Suite("L0_shared_memory", limit_s=1800.0),
    Suite(
        "L0_simple_ensemble",
        edits=(
            (r"\nrm -f \$CLIENT_LOG ", SIMPLE),
            (r"async_stream_infer\(", r"\g<0>enable_empty_final_response=True, "),
        ),
        excluded={
            "test_step2_max_queue|test_parallel_step": "parts of a request do not run in parallel",
        },
        limit_s=1800.0,
    ),
    Suite("L0_simple_example", edits=((CLIENT_IN_CPP, ""),)),
    Suite("L0_storage_S3_local", excluded={"": "repositories are folders"}),
    Suite(
        "L0_socket",
        edits=((r"DATADIR=`pwd`/models", "DATADIR=`pwd`/../L0_simple_example/models"),),
        excluded={"": "both ports may be shared if one flag says so; it passes until there"},
    ),
    Suite("L0_string_io", ONNX),
    Suite(
        "L0_trace",
        edits=(
            (r"\./otelcol\b", "otelcol"),
            (r"cp -r \.\./L0_decoupled/models/repeat_int32 \$MODELSDIR", REPEAT),
        ),
        excluded={
            "sagemaker": "no port for SageMaker",
            "trace_triggered": "the rate of OpenTelemetry is its sampler's",
            "exposed_to_pbe": "`request.trace()` is None",
            "OpenTelemetryTest": "spans of the request, its Ops and their stages, not Triton's",
        },
        limit_s=1800.0,
    ),
    Suite("L0_warmup", ONNX, (*ON_CPU, ("pip3 uninstall -y torch", "exit $RET"))),
]


def prepare(server: Path, client: Path) -> None:
    """Make build/interop/triton_suites: an interpreter, the models, the suites as in the image."""
    python = BUILD / "venv" / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", BUILD / "venv"], check=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *PACKAGES], check=True)
    site = next((BUILD / "venv" / "lib").glob("python*/site-packages"))
    (site / "suite_results.py").write_text(RESULTS)
    (site / "triton_shm_monitor.py").write_text(SHM_MONITOR)
    (site / "suite_results.pth").write_text("import suite_results\n")
    for folder, command in GENERATED.items():
        models = BUILD / "data" / VERSION / folder
        if not models.exists():
            models.mkdir(parents=True)
            generator, *flags = command.split()
            subprocess.run(
                [python, generator, *flags, f"--models_dir={models}"],
                cwd=server / "qa" / "common",
                stdout=subprocess.DEVNULL,
                check=True,
            )
            for model in models.glob("*bf16*"):  # onnxruntime's CPU does not run them
                shutil.rmtree(model)
            for config in models.rglob("config.pbtxt"):
                config.write_text(config.read_text().replace("KIND_GPU", "KIND_CPU"))
    copies = BUILD / "data" / STAND_INS
    if not copies.exists():
        shutil.copytree(BUILD / "data" / VERSION, copies)
        for config in list(copies.rglob("config.pbtxt")):
            config.write_text(config.read_text().replace("PUT__", "PUT"))  # libtorch's names
            for prefix in (
                ("libtorch", "openvino", "plan") if config.parent.name.startswith("onnx_") else ()
            ):
                copy = config.parent.with_name(config.parent.name.replace("onnx", prefix))
                shutil.copytree(config.parent, copy)
                text = config.read_text().replace(config.parent.name, copy.name)
                (copy / config.name).write_text(text)
    triton = BUILD / "tritonserver"
    shutil.rmtree(triton, ignore_errors=True)
    shutil.copytree(server / "qa", triton / "qa")
    for folder in ("python_models", "L0_backend_python"):
        for file in (triton / "qa" / folder).rglob("*"):
            if file.name in ("model.py", "config.pbtxt"):
                file.write_text(_edited(file.read_text(), MODEL_EDITS))
    for suite, names in EXAMPLES.items():
        for name in names.split():
            source = server / "docs" / "examples" / "model_repository" / name
            shutil.copytree(source, triton / "qa" / suite / "models" / name)
    for suite, names in TEST_MODELS.items():
        for name in names.split():
            model = triton / "qa" / suite / "models" / name
            shutil.copytree(server / "src" / "test" / "models" / name, model)
            (model / "1").mkdir()
    shutil.copytree(ROOT / "interop" / "triton_backends", triton / "backends")
    for name in LIBRARIES:
        (triton / "qa" / name).parent.mkdir(parents=True, exist_ok=True)
        (triton / "qa" / name).touch()
    python_client = client / "src" / "python"
    shutil.copytree(python_client / "examples", triton / "qa" / "clients")
    tests = triton / "qa" / "python_client_unit_tests"
    shutil.copytree(python_client / "library" / "tests", tests)
    for source in (client / "src" / "c++" / "examples").glob("*.cc"):
        _program(triton / "qa" / "clients" / source.stem, "true")
    packages = BUILD / "packages"
    shutil.rmtree(packages, ignore_errors=True)
    packages.mkdir()
    for package in site.iterdir():  # models import PyTorch, which the server does without
        if package.suffix in ("", ".py") and importlib.util.find_spec(package.stem) is None:
            (packages / package.name).symlink_to(package)
    server_line = f'PYTHONPATH={packages} exec {sys.executable} -m pipeline repository "$@"'
    _program(triton / "bin" / "tritonserver", server_line)
    for name in ("apt", "apt-get", "pip", "pip3"):
        _program(BUILD / "bin" / name, "true")
    perf_analyzer = os.environ.get("PERF_ANALYZER", "/usr/bin/false")
    _program(BUILD / "bin" / "perf_analyzer", f'exec {perf_analyzer} "$@"')
    nginx = 'exec /usr/sbin/nginx -g "user root; pid /mnt/nginx.pid;" "$@"'
    _program(BUILD / "bin" / "nginx", nginx)
    _program(BUILD / "bin" / "service", 'nginx -s stop; [ "$2" = stop ] || exec nginx')
    _program(BUILD / "bin" / "git", f'cp -r {server.parent}/"$(basename "$2")" .')


def _edited(text: str, edits: Iterable[tuple[str, str]]) -> str:
    for pattern, replacement in edits:
        text = re.sub(pattern, replacement, text)
    return text


def _program(path: Path, line: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{line}\n")
    path.chmod(0o755)


INSIDE = """
set -e
ip link set lo up
mount -t tmpfs none /opt; mkdir /opt/tritonserver; mount --bind {triton} /opt/tritonserver
mount -t tmpfs none /mnt; mkdir -p /mnt/inferenceserver; mount --bind {data} /mnt/inferenceserver
mkdir -p /data 2>/dev/null; mount --rbind /mnt /data
if [ -d /etc/nginx ]; then
    cp -a /etc/nginx /mnt/; mount --bind /mnt/nginx /etc/nginx
    sed -i '/^user/d; /^pid/d' /etc/nginx/nginx.conf
    mount -t tmpfs none /var/lib/nginx; mount -t tmpfs none /var/log/nginx
fi
cd /opt/tritonserver/qa/{suite}
exec bash ./test.sh {version}
"""


def run(suite: Suite) -> tuple[list[dict[str, str]], float, str]:
    """Run a suite; return the outcomes of its cases, its seconds, and how its script ended."""
    folder = BUILD / "tritonserver" / "qa" / suite.name
    for file in folder.rglob("*"):
        if file.suffix in (".sh", ".py", ".pbtxt"):
            file.write_text(_edited(file.read_text(), suite.edits))
    logs = BUILD / "logs"
    logs.mkdir(exist_ok=True)
    results = logs / f"{suite.name.replace('/', '-')}.jsonl"
    results.write_text("")
    environment = {
        **os.environ,
        "PATH": f"{BUILD}/bin:{BUILD}/venv/bin:{os.environ['PATH']}",
        "NVIDIA_TRITON_SERVER_VERSION": suite.version,
        "PYTHONPATH": "../common",
        "PIPELINE_TEST_HOOKS": "1",
        "PYTEST_PLUGINS": "suite_results",
        "SUITE_PROGRAMS": suite.programs,
        "SUITE_RESULTS": str(results),
        **suite.environment,
    }
    inside = INSIDE.format(
        triton=BUILD / "tritonserver", data=BUILD / "data", suite=suite.name, version=suite.version
    )
    namespaces = ["unshare", "-rmn", "--pid", "--fork", "--kill-child", "--mount-proc"]
    began = time.monotonic()
    with results.with_suffix(".log").open("w") as log:
        process = subprocess.Popen(
            [*namespaces, "bash", "-c", inside],
            env=environment,
            stdout=log,
            stderr=log,
            start_new_session=True,  # scripts that kill 0 mean themselves
        )
        try:
            ended = f"exit status {process.wait(suite.limit_s)}"
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.wait()
            ended = f"ended after {suite.limit_s:.0f} s"
    cases = [json.loads(line) for line in results.read_text().splitlines()]
    if not cases:
        outcome = "passed" if ended == "exit status 0" else "failed"
        cases = [{"script": "test.sh", "case": "test.sh", "outcome": outcome, "text": ended}]
    return cases, time.monotonic() - began, ended


def report(suite: Suite, cases: list[dict[str, str]], seconds: float, ended: str) -> str:
    """Return the suite's row of the table, and print what failed."""
    reasons: Counter[str] = Counter()
    passed = failed = 0
    for case in cases:
        reason = next((r for p, r in suite.excluded.items() if re.search(p, case["case"])), None)
        if case["outcome"] == "passed":
            passed += 1
        elif reason is not None:
            reasons[reason] += 1
        elif case["outcome"] == "skipped":
            reasons["skips itself"] += 1
        else:
            failed += 1
            print(f"    {case['case']}: {case['text'].strip().splitlines()[-1:]}")
    others = "; ".join(f"{count}: {reason}" for reason, count in reasons.items())
    summary = (
        f"{suite.name}: {passed} of {passed + failed}; {others or '-'}; {seconds:.0f} s, {ended}"
    )
    print(summary, flush=True)
    return f"| `{suite.name}` | {passed} of {passed + failed} | {others} |"


def with_rows(text: str, rows: Mapping[str, str]) -> str:
    """Return the page with these rows in its generated table; the others stay."""
    head, begin, rest = text.partition("<!-- rows -->\n")
    table, end, tail = rest.partition("<!-- end -->")
    kept = {line.split("`")[1]: line for line in table.splitlines() if line.startswith("| `")}
    kept |= rows
    heading = "| suite | cases | why not the others |\n|---|---|---|\n"
    lines = [f"{kept[name]}\n" for name in sorted(kept)]
    return "".join([head, begin, heading, *lines, end, tail])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("server", type=Path, help="a checkout of triton-inference-server/server")
    parser.add_argument("client", type=Path, help="a checkout of triton-inference-server/client")
    parser.add_argument("suites", nargs="*", help="names of suites; default: all")
    parser.add_argument("--write", action="store_true", help=f"write the rows into {TABLE.name}")
    given = parser.parse_args()
    prepare(given.server.resolve(), given.client.resolve())
    rows = {}
    for suite in SUITES:
        if not given.suites or suite.name in given.suites:
            rows[suite.name] = report(suite, *run(suite))
    if given.write:
        TABLE.write_text(with_rows(TABLE.read_text(), rows))


if __name__ == "__main__":
    main()
