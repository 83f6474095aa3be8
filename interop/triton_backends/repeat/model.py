"""A stand-in for Triton's test backend `repeat`: a response for each element of IN."""

import threading
import time

import numpy as np
import triton_python_backend_utils as pb_utils

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            inputs = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
            sender = request.get_response_sender()
            threading.Thread(target=self.send, args=(sender, inputs)).start()
            time.sleep(int(inputs["WAIT"].ravel()[0]) / 1000)

    def send(self, sender, inputs):
        values, delays_ms = inputs["IN"].ravel(), inputs["DELAY"].ravel()
        for index, (value, delay_ms) in enumerate(zip(values, delays_ms, strict=True)):
            time.sleep(int(delay_ms) / 1000)
            outputs = [
                pb_utils.Tensor("OUT", np.array([value], np.int32)),
                pb_utils.Tensor("IDX", np.array([index], np.uint32)),
            ]
            sender.send(pb_utils.InferenceResponse(outputs))
        sender.send(flags=FINAL)
