"""A stand-in for Triton's test backend `iterative_sequence`: counts INPUT down to 0."""

import time

import numpy as np
import triton_python_backend_utils as pb_utils

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
RESCHEDULE = pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE


class TritonPythonModel:
    def initialize(self, args):
        self.left = {}

    def execute(self, requests):
        for request in requests:
            values = pb_utils.get_input_tensor_by_name(request, "INPUT").as_numpy()
            sender = request.get_response_sender()
            left = self.left.pop(sender, int(values.ravel()[0])) - 1
            output = pb_utils.Tensor("OUTPUT", np.full_like(values, left))
            time.sleep(0.5)
            if left > 0:
                self.left[sender] = left
                request.set_release_flags(RESCHEDULE)
            flags = 0 if left > 0 else FINAL
            sender.send(pb_utils.InferenceResponse([output]), flags=flags)
