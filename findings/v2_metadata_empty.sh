#!/usr/bin/env bash
# Guess: A server of the v2 protocol says in a model's metadata which inputs and outputs it has.
# True: MLServer says only what model-settings.json says: without it both lists are empty, and the
#   model answers requests all the same.
# Versions: mlserver==1.7.1; Python 3.11; 2026-11-29
# We heed it in: pipeline/predictors/remote/kserve.py: without metadata a feed is sent unchanged.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
"${PYTHON:-python3}" -m venv env
env/bin/pip install --quiet --disable-pip-version-check mlserver==1.7.1
cat >twice.py <<'EOF'
from mlserver import MLModel
from mlserver.codecs import NumpyCodec
from mlserver.types import InferenceResponse


class Twice(MLModel):
    async def predict(self, payload):
        array = NumpyCodec.decode_input(payload.inputs[0])
        return InferenceResponse(model_name="twice", outputs=[NumpyCodec.encode_output("y", 2 * array)])
EOF
cat >program.py <<'EOF'
import asyncio

from mlserver import ModelSettings, Settings
from mlserver.handlers import DataPlane
from mlserver.registry import MultiModelRegistry
from mlserver.types import InferenceRequest, RequestInput
from twice import Twice


async def main():
    settings, registry = Settings(parallel_workers=0, debug=False), MultiModelRegistry()
    await registry.load(ModelSettings(name="twice", implementation=Twice))
    plane = DataPlane(settings, registry)
    metadata = await plane.model_metadata("twice")
    print("inputs:", metadata.inputs, "outputs:", metadata.outputs)
    x = RequestInput(name="x", datatype="FP32", shape=[2], data=[1, 2])
    (y,) = (await plane.infer(InferenceRequest(inputs=[x]), "twice")).outputs
    print("answer:", y.name, y.datatype, list(y.data))


asyncio.run(main())
EOF
cat >seen <<'EOF'
inputs: [] outputs: []
answer: y FP32 [2.0, 4.0]
EOF
env/bin/python program.py 2>errors | tee output || { cat errors; exit 1; }
diff seen output && echo "as it was seen"
