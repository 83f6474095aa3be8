"""A stand-in for Triton's test backend `square`: IN responses, each of which is IN."""

import threading

import triton_python_backend_utils as pb_utils

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            values = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
            sender = request.get_response_sender()
            threading.Thread(target=self.send, args=(sender, values)).start()

    def send(self, sender, values):
        for _ in range(int(values.ravel()[0])):
            sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", values)]))
        sender.send(flags=FINAL)
