#!/usr/bin/env bash
# Guess: OpenVINO computes an ONNX model in the types that the model declares, as onnxruntime does.
# True: On the CPU it computes int64 and uint64 in 32 bits and float64 as float32, and int8 stops at
#   127 where onnxruntime wraps. The outputs still have the declared types, and there is no error.
# Versions: openvino==2026.4.1, onnxruntime==1.32.0, onnx==1.23.2, numpy==2.4.6; Python 3.11;
#   2026-11-29
# We heed it in: pipeline/predictors/openvino/predictor.py: integers of more than 32 bits are
#   refused.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
"${PYTHON:-python3}" -m venv env
env/bin/pip install --quiet --disable-pip-version-check openvino==2026.4.1 onnxruntime==1.32.0 onnx==1.23.2 numpy==2.4.6
cat >program.py <<'EOF'
import sys

sys.modules["openvino_telemetry"] = None  # it would report the import

import numpy as np
import onnxruntime
import openvino
from onnx import TensorProto, helper


def both(kind, array):
    info = [helper.make_tensor_value_info(name, kind, [1]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Add", ["x", "x"], ["y"])], "twice", info[:1], info[1:])
    opset = [helper.make_opsetid("", 20)]
    model = helper.make_model(graph, opset_imports=opset, ir_version=10).SerializeToString()
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    core = openvino.Core()
    compiled = core.compile_model(core.read_model(model), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    ours = compiled({0: array})[0]
    return session.run(None, {"x": array})[0].tolist(), ours.tolist(), str(ours.dtype)


for kind, dtype, number in (
    (TensorProto.INT64, np.int64, 2**40),
    (TensorProto.UINT64, np.uint64, 2**32),
    (TensorProto.DOUBLE, np.float64, 1 / 3),
    (TensorProto.INT8, np.int8, 100),
    (TensorProto.INT32, np.int32, 2**30 - 1),
):
    expected, found, named = both(kind, np.array([number], dtype))
    print(f"{named}: twice {number} is {expected} in onnxruntime, {found} in OpenVINO")
EOF
cat >seen <<'EOF'
int64: twice 1099511627776 is [2199023255552] in onnxruntime, [0] in OpenVINO
uint64: twice 4294967296 is [8589934592] in onnxruntime, [0] in OpenVINO
float64: twice 0.3333333333333333 is [0.6666666666666666] in onnxruntime, [0.6666666865348816] in OpenVINO
int8: twice 100 is [-56] in onnxruntime, [127] in OpenVINO
int32: twice 1073741823 is [2147483646] in onnxruntime, [2147483646] in OpenVINO
EOF
env/bin/python program.py 2>errors | tee output || { cat errors; exit 1; }
diff seen output && echo "as it was seen"
