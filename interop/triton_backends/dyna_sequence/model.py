"""A stand-in for Triton's test backend `dyna_sequence`: sums, and at the end the sequence's id."""

import json
import time

import numpy as np
import triton_python_backend_utils as pb_utils

START = pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START
END = pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_END


class TritonPythonModel:
    def initialize(self, args):
        parameters = json.loads(args["model_config"]).get("parameters", {})
        delay_ms = parameters.get("execute_delay_ms", {}).get("string_value", "0")
        self.delay_s = int(delay_ms) / 1000
        self.sums = {}

    def execute(self, requests):
        time.sleep(self.delay_s)
        return [self.answer(request) for request in requests]

    def answer(self, request):
        values = pb_utils.get_input_tensor_by_name(request, "INPUT").as_numpy()
        sequence = request.correlation_id()
        before = 0 if request.flags() & START else self.sums.get(sequence, 0)
        total = before + int(values.sum())
        if request.flags() & END:
            total += int(sequence)
        self.sums[sequence] = total
        output = np.full_like(values, total)
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT", output)])
