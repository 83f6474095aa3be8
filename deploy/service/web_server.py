"""The service that the files of this folder deploy: replace it by your own."""

from pathlib import Path

import numpy as np

from pipeline import Op, PipelineServer, ProductError, RequestOp, ResponseOp


class Score(Op):
    """Returns the weighted sum of three numbers; replace it by your model."""

    def init_op(self):
        self.weights = np.array([[0.5], [0.25], [0.25]], np.float32)

    def preprocess(self, input_dicts, data_id, log_id):
        try:
            x = np.array(input_dicts["@DAGExecutor"]["x"].split(","), np.float32)
            return {"x": x.reshape(1, 3)}
        except (KeyError, ValueError):
            raise ProductError(51, 'send three numbers under the key "x": "1, 2, 3"') from None

    def process(self, feed_batch, typical_logid):  # x is float32 (requests, 3)
        return {"score": feed_batch[0]["x"] @ self.weights}


server = PipelineServer("scores")
server.set_response_op(ResponseOp(Score("score", RequestOp())))
server.prepare_server(str(Path(__file__).with_name("config.yml")))

if __name__ == "__main__":
    server.run_server()
