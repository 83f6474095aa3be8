#!/usr/bin/env bash
# Guess: Operators of one runtime agree with each other, and with numpy, about NaN and about empty
#   arrays.
# True: Of [1, NaN, 3] ArgMax finds 3 and TopK finds NaN, numpy's argmax NaN as well. The mean of no
#   elements is 0, numpy's is NaN. Two inputs that declare one symbolic size N may have different
#   sizes.
# Versions: onnxruntime==1.32.0, onnx==1.23.2, numpy==2.4.6; Python 3.11; 2026-11-29
# We heed it in: pipeline/predictors/onnx/predictor.py: a request without rows is answered without
#   the model, unless the model is declared to take it.
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


def run(nodes, feed, outputs, constants=()):
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N"]) for name in feed]
    results = [helper.make_tensor_value_info(name, kind, None) for name, kind in outputs.items()]
    graph = helper.make_graph(nodes, "g", inputs, results, list(constants))
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return [value.tolist() for value in session.run(None, feed)]


array = np.array([1, np.nan, 3], np.float32)
node = helper.make_node("ArgMax", ["x"], ["y"], keepdims=0, axis=0)
print("ArgMax:", run([node], {"x": array}, {"y": TensorProto.INT64}))
one = helper.make_tensor("k", TensorProto.INT64, [1], [1])
node = helper.make_node("TopK", ["x", "k"], ["v", "y"])
print("TopK:", run([node], {"x": array}, {"y": TensorProto.INT64}, [one]), "numpy:", int(np.argmax(array)))
node = helper.make_node("ReduceMean", ["x"], ["y"], keepdims=0)
print("mean of nothing:", run([node], {"x": array[:0]}, {"y": TensorProto.FLOAT}))
nodes = [helper.make_node("Identity", ["a"], ["y"]), helper.make_node("Identity", ["b"], ["z"])]
feed = {"a": array[:1] * 0, "b": array[:1].repeat(2) * 0}
print("N is 1 and 2:", run(nodes, feed, {"y": TensorProto.FLOAT, "z": TensorProto.FLOAT}))
EOF
cat >seen <<'EOF'
ArgMax: [2]
TopK: [[1]] numpy: 1
mean of nothing: [0.0]
N is 1 and 2: [[0.0], [0.0, 0.0]]
EOF
env/bin/python program.py 2>errors | tee output || { cat errors; exit 1; }
diff seen output && echo "as it was seen"
