"""Many microphones at once: each is a sequence of 32 ms chunks, answered while it goes on.

python microphones.py        then ask it: python microphones_demo.py, or see README.md

chunk -> listen -> speech, how likely somebody speaks in it
"""

from pathlib import Path

import numpy as np
from installed import configuration
from segments import CONTEXT, FRAME
from sound import RATE

from pipeline import Op, PipelineServer, RequestOp, ResponseOp, Tensor


class ListenOp(Op):
    """Hears the next chunk of each microphone in a batch.

    What a microphone's model remembers (`state`), and the end of the chunk before (`before`), are
    kept from step to step as microphones.yml says: what `process` returns of them comes next time.
    """

    input_tensors = (Tensor("chunk", "FP32", (FRAME,)),)
    output_tensors = (Tensor("speech", "FP32", (1,)),)
    max_batch_size = 32

    def process(self, feed_batch, log_id):
        fed = feed_batch[0]
        heard = np.concatenate([fed["before"], fed["chunk"]], axis=1)
        feed = {"input": heard, "state": fed["state"], "sr": np.array(RATE)}
        found = self.client.predict(feed, ["output", "stateN"])
        return {
            "speech": found["output"],
            "state_next": found["stateN"],
            "before_next": heard[:, -CONTEXT:],
        }


config = configuration(Path(__file__).resolve().parent / "microphones.yml", "listen")
server = PipelineServer("microphones")
server.set_response_op(ResponseOp(ListenOp("listen", RequestOp())))
server.prepare_server(yml_dict=config)

if __name__ == "__main__":
    server.run_server()
