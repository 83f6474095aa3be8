#!/usr/bin/env bash
# Guess: numpy.load returns the dtype that numpy.save was given, or one of them raises an error.
# True: bfloat16 and float8 of ml_dtypes are saved without a complaint and come back as raw bytes
#   (V2, V1). numpy's own StringDType is saved as a pickle, which numpy.load refuses.
# Versions: numpy==2.4.6, ml_dtypes==0.5.4; Python 3.11; 2026-11-29
# We heed it in: pipeline/proto/codec.py and docs/types.md: bfloat16 travels under a name of its
#   own, not as .npy.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
"${PYTHON:-python3}" -m venv env
env/bin/pip install --quiet --disable-pip-version-check numpy==2.4.6 ml_dtypes==0.5.4
cat >program.py <<'EOF'
import io

import ml_dtypes
import numpy as np

for dtype in (np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.int4, np.dtypes.StringDType()):
    array = np.array(["1", "2"] if isinstance(dtype, np.dtypes.StringDType) else [1, 2], dtype)
    file = io.BytesIO()
    np.save(file, array)
    file.seek(0)
    try:
        print(array.dtype, "->", np.load(file).dtype)
    except ValueError as error:
        print(array.dtype, "->", type(error).__name__)
EOF
cat >seen <<'EOF'
float16 -> float16
bfloat16 -> |V2
float8_e4m3fn -> |V1
int4 -> |V1
StringDType() -> ValueError
EOF
env/bin/python program.py 2>errors | tee output || { cat errors; exit 1; }
diff seen output && echo "as it was seen"
