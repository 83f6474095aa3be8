"""Tensors where protobuf has no C library."""

from __future__ import annotations

import os
import subprocess
import sys


def test_protobuf_without_its_c_library_reads_and_writes_the_same():
    script = (
        "import numpy as np\n"
        "from google.protobuf.internal import api_implementation\n"
        "assert api_implementation.Type() == 'python'\n"
        "from pipeline.proto.codec import numpy_to_tensor, tensor_to_numpy\n"
        "array = np.linspace(0, 1, 300, dtype=np.float32).reshape(3, 100)\n"
        "wire = numpy_to_tensor('x', array).SerializeToString()\n"
        "back = tensor_to_numpy(type(numpy_to_tensor('x', 0)).FromString(wire))\n"
        "assert (back == array).all() and back.shape == array.shape\n"
    )
    pure = os.environ | {"PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION": "python"}
    subprocess.run([sys.executable, "-c", script], env=pure, check=True)
