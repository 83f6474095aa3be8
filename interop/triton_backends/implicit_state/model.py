"""A stand-in for Triton's test backend `implicit_state`, which changes no state."""

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        inputs = [pb_utils.get_input_tensor_by_name(request, "INPUT") for request in requests]
        outputs = [pb_utils.Tensor("OUTPUT", tensor.as_numpy()) for tensor in inputs]
        return [pb_utils.InferenceResponse([output]) for output in outputs]
