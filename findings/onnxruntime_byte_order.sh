#!/usr/bin/env bash
# Guess: onnxruntime refuses an array whose bytes are in the other order, or turns them.
# True: It reads the bytes as they lie: a big-endian float32 array, as .npy files of other machines
#   hold, gives wrong numbers and no error.
# Versions: onnxruntime==1.32.0, onnx==1.23.2, numpy==2.4.6; Python 3.11; 2026-11-29
# We heed it in: pipeline/predictors/signature.py: a feed is cast to the native dtype.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
"${PYTHON:-python3}" -m venv env
env/bin/pip install --quiet --disable-pip-version-check onnxruntime==1.32.0 onnx==1.23.2 numpy==2.4.6
cat >program.py <<'EOF'
import numpy as np
import onnxruntime
from onnx import TensorProto, helper

x = helper.make_tensor_value_info("x", TensorProto.INT32, ["N"])
y = helper.make_tensor_value_info("y", TensorProto.INT32, ["N"])
graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "same", [x], [y])
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
for dtype in ("<i4", ">i4"):
    print(dtype, "1 is", session.run(None, {"x": np.array([1], dtype)})[0].tolist())
EOF
cat >seen <<'EOF'
<i4 1 is [1]
>i4 1 is [16777216]
EOF
env/bin/python program.py 2>errors | tee output || { cat errors; exit 1; }
diff seen output && echo "as it was seen"
