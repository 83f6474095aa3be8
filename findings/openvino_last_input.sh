#!/usr/bin/env bash
# Guess: A run without one of the model's inputs is refused.
# True: OpenVINO's InferRequest.infer takes the values of the last call for an input that is not
#   given, also if another caller gave them; before the first call a dynamic input is empty.
# Versions: openvino==2026.4.1, onnx==1.23.2, numpy==2.4.6; Python 3.11; 2026-11-29
# We heed it in: pipeline/predictors/local.py: a signature checks that each input is there.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
"${PYTHON:-python3}" -m venv env
env/bin/pip install --quiet --disable-pip-version-check openvino==2026.4.1 onnx==1.23.2 numpy==2.4.6
cat >program.py <<'EOF'
import sys

sys.modules["openvino_telemetry"] = None  # it would report the import

import numpy as np
import openvino
from onnx import TensorProto, helper

info = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N"]) for name in "aby"]
graph = helper.make_graph([helper.make_node("Add", ["a", "b"], ["y"])], "sum", info[:2], info[2:])
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
core = openvino.Core()
compiled = core.compile_model(core.read_model(model.SerializeToString()), "CPU")
one = np.array([1], np.float32)
request = compiled.create_infer_request()
print("a and b:", request.infer({"a": one, "b": 41 * one})[0].tolist())
print("only a:", request.infer({"a": one})[0].tolist())
request = compiled.create_infer_request()
print("nothing, at first:", request.infer({})[0].tolist())
EOF
cat >seen <<'EOF'
a and b: [42.0]
only a: [42.0]
nothing, at first: []
EOF
env/bin/python program.py 2>errors | tee output || { cat errors; exit 1; }
diff seen output && echo "as it was seen"
