"""Detects speech at many microphones: each is a sequence of chunks, answered one by one.

python microphones.py        then in another terminal: python microphones_demo.py, or see README.md

chunk (32 ms) -> listen -> speech: the probability of speech in the chunk
"""

from pathlib import Path

import numpy as np
from installed import configuration
from segments import CONTEXT, FRAME
from sound import RATE

from pipeline import Op, PipelineServer, RequestOp, ResponseOp, Tensor


class ListenOp(Op):
    """Scores the next chunk of each microphone in a batch.

    The model's state of a microphone (`state`) and the end of its last chunk (`before`) pass from
    step to step: `process` gets what it returned one step earlier, by `state` in microphones.yml.
    """

    input_tensors = (Tensor("chunk", "FP32", (FRAME,)),)
    output_tensors = (Tensor("speech", "FP32", (1,)),)
    max_batch_size = 32

    def process(self, feed_batch, log_id):
        batch = feed_batch[0]
        samples = np.concatenate([batch["before"], batch["chunk"]], axis=1)
        feed = {"input": samples, "state": batch["state"], "sr": np.array(RATE)}
        outputs = self.client.predict(feed, ["output", "stateN"])
        return {
            "speech": outputs["output"],
            "state_next": outputs["stateN"],
            "before_next": samples[:, -CONTEXT:],
        }


config = configuration(Path(__file__).resolve().parent / "microphones.yml", "listen")
server = PipelineServer("microphones")
server.set_response_op(ResponseOp(ListenOp("listen", RequestOp())))
server.prepare_server(yml_dict=config)

if __name__ == "__main__":
    server.run_server()
