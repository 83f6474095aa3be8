#!/usr/bin/env bash
# Guess: onnxruntime takes bytes as text in UTF-8, and refuses what is neither bytes nor text.
# True: Each element of an object array goes through Python's str(): bytes arrive as the seven
#   characters b'abc' that Python prints, None as None. Numbers that are cast from text stop at the
#   first character that cannot belong to a number: '1,5' is 1.
# Versions: onnxruntime==1.32.0, onnx==1.23.2, numpy==2.4.6; Python 3.11; 2026-11-29
# We heed it in: pipeline/predictors/signature.py: bytes are decoded, anything else is refused.
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


def session(node, kind):
    x = helper.make_tensor_value_info("x", TensorProto.STRING, ["N"])
    y = helper.make_tensor_value_info("y", kind, ["N"])
    graph = helper.make_graph([node], "g", [x], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    return onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])


same = session(helper.make_node("Identity", ["x"], ["y"]), TensorProto.STRING)
for value in ("abc", b"abc", 1, None):
    print(repr(value), "->", same.run(None, {"x": np.array([value], object)})[0].tolist())
number = session(helper.make_node("Cast", ["x"], ["y"], to=TensorProto.FLOAT), TensorProto.FLOAT)
for text in ("1.5", "1,5", "1.5 kg", "0x10"):
    print(repr(text), "->", number.run(None, {"x": np.array([text], object)})[0].tolist())
EOF
cat >seen <<'EOF'
'abc' -> ['abc']
b'abc' -> ["b'abc'"]
1 -> ['1']
None -> ['None']
'1.5' -> [1.5]
'1,5' -> [1.0]
'1.5 kg' -> [1.5]
'0x10' -> [16.0]
EOF
env/bin/python program.py 2>errors | tee output || { cat errors; exit 1; }
diff seen output && echo "as it was seen"
