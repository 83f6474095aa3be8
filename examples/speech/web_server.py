"""Detects speech in a WAV file; the answer has a part for each segment of speech.

python web_server.py        then in another terminal: python demo.py, or see README.md

audio -> vad -> loudness -> {start_s, end_s, loudness_db}, when a segment has ended
"""

from pathlib import Path

import numpy as np
from installed import configuration
from segments import FRAME, find_segments, frames_of
from sound import RATE, SoundError, level_of, read_sound

from pipeline import Op, PipelineServer, ProductError, RequestOp, ResponseOp

HERE = Path(__file__).resolve().parent
BAD_SOUND = 51


class VadOp(Op):
    """Yields each segment of a file when it ends."""

    def preprocess(self, input_dicts):
        try:
            return {"samples": read_sound(input_dicts["@DAGExecutor"].get("audio"))}
        except SoundError as error:
            raise ProductError(BAD_SOUND, str(error)) from None

    def process(self, feed_batch, log_id, *, context):
        samples = feed_batch[0]["samples"]
        for first, last in find_segments(self.scores(samples, context[0])):
            start, end = first * FRAME, min(last * FRAME, len(samples))
            yield {"start": start, "end": end, "samples": samples[start:end]}

    def scores(self, samples, context):
        """Yield the probability of speech in each frame; `state` carries the frames before it."""
        state = np.zeros((2, 1, 128), np.float32)
        for frame in frames_of(samples):
            if (
                context.is_cancelled()
            ):  # a long silence yields nothing, which would otherwise notice it
                return
            feed = {"input": frame[np.newaxis], "state": state, "sr": np.array(RATE)}
            score, state = self.client.predict(feed, ["output", "stateN"]).values()
            yield float(score[0, 0])


class LoudnessOp(Op):
    """Adds the loudness of a segment; it runs once for each part."""

    def preprocess(self, input_dicts):
        segment = input_dicts["vad"]
        return {
            "start_s": np.array([segment["start"] / RATE]),
            "end_s": np.array([segment["end"] / RATE]),
            "loudness_db": np.array([round(level_of(segment["samples"]), 1)]),
        }


vad = VadOp("vad", RequestOp())
loudness = LoudnessOp("loudness", vad)

server = PipelineServer("speech")
server.set_response_op(ResponseOp(loudness))
server.prepare_server(yml_dict=configuration(HERE / "config.yml", "vad"))

if __name__ == "__main__":
    server.run_server()
