"""The pipelines that Triton's clients ask: `python servers.py NAME HTTP_PORT RPC_PORT`."""

import sys

from pipeline import Op, PipelineServer, RequestOp, ResponseOp
from pipeline.data import Tensor
from pipeline.errors import ProductError

LONGEST_BATCH = 8
NO_GOOD = 2**31 - 1  # the number that the Op "sum" refuses
PAIR = (Tensor("A", "INT32", (16,)), Tensor("B", "INT32", (16,)))


class PairOp(RequestOp):
    input_tensors = PAIR
    max_batch_size = LONGEST_BATCH


class SumOp(Op):
    input_tensors = PAIR
    output_tensors = (Tensor("SUM", "INT32", (16,)),)
    max_batch_size = LONGEST_BATCH

    def preprocess(self, input_dicts, data_id, log_id):
        (inputs,) = input_dicts.values()
        if (inputs["A"] == NO_GOOD).any():
            raise ProductError(51, "this number is not allowed")
        return {"SUM": inputs["A"] + inputs["B"]}, False, None, ""


class DifferenceOp(Op):
    input_tensors = PAIR
    output_tensors = (Tensor("DIFFERENCE", "INT32", (16,)),)
    max_batch_size = LONGEST_BATCH

    def preprocess(self, input_dicts, data_id, log_id):
        (inputs,) = input_dicts.values()
        return {"DIFFERENCE": inputs["A"] - inputs["B"]}, False, None, ""


class BothOp(Op):
    input_tensors = (
        Tensor("SUM", "INT32", (16,), source="sum"),
        Tensor("DIFFERENCE", "INT32", (16,), source="difference"),
    )
    output_tensors = (Tensor("SUM", "INT32", (16,)), Tensor("DIFFERENCE", "INT32", (16,)))
    max_batch_size = LONGEST_BATCH

    def preprocess(self, input_dicts, data_id, log_id):
        outputs = {name: value for one in input_dicts.values() for name, value in one.items()}
        return outputs, False, None, ""


class EchoOp(Op):
    """Declares nothing: it takes what comes, and gives it back."""

    def preprocess(self, input_dicts, data_id, log_id):
        (inputs,) = input_dicts.values()
        return dict(inputs), False, None, ""


class CountOp(Op):
    """Answers in parts: 0, 1, ... up to below N."""

    input_tensors = (Tensor("N", "INT32", (1,)),)
    output_tensors = (Tensor("NUMBER", "INT32", (1,)),)

    def process(self, feed_batch, log_id):
        (batch,) = feed_batch
        for number in range(batch["N"][0]):
            yield {"NUMBER": batch["N"] * 0 + number}


def numbers() -> ResponseOp:
    read = PairOp()
    parts = [SumOp(name="sum", input_ops=[read]), DifferenceOp(name="difference", input_ops=[read])]
    return ResponseOp(input_ops=[BothOp(name="both", input_ops=parts)])


def echo() -> ResponseOp:
    return ResponseOp(input_ops=[EchoOp(name="same", input_ops=[RequestOp()])])


def parts() -> ResponseOp:
    read = RequestOp()
    return ResponseOp(input_ops=[CountOp(name="count", input_ops=[read], concurrency=4)])


PIPELINES = {"numbers": numbers, "echo": echo, "parts": parts}


def main() -> None:
    name, http_port, rpc_port = sys.argv[1], *map(int, sys.argv[2:])
    server = PipelineServer(name=name)
    server.set_response_op(PIPELINES[name]())
    # Only a server that limits requests itself heeds the `timeout` of one.
    ports = {"http_port": http_port, "rpc_port": rpc_port}
    server.prepare_server(yml_dict={**ports, "timeout": 60_000})
    server.run_server()


if __name__ == "__main__":
    main()
