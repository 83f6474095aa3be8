"""Render clip.wav for the demo: apt-get install flite

Three sentences, spoken by a voice of flite, with pauses and a little noise.
"""

from __future__ import annotations

import subprocess
import tempfile
import wave
from pathlib import Path

import numpy as np

RATE = 16_000
CLIP = Path(__file__).resolve().parent / "clip.wav"
SENTENCES = (  # with the pause before each, in seconds
    (0.1, "The door is open."),
    (0.6, "Come in and take a seat."),
    (0.5, "Would you like some tea?"),
)
NOISE = 20  # of 32768


def main() -> None:
    parts = [
        part for pause, text in SENTENCES for part in (np.zeros(int(pause * RATE)), spoken(text))
    ]
    clip = np.concatenate(parts)
    clip += np.random.default_rng(2026).normal(0, NOISE, len(clip))
    with wave.open(str(CLIP), "wb") as file:
        file.setparams((1, 2, RATE, 0, "NONE", ""))
        file.writeframes(clip.round().astype("<i2").tobytes())


def spoken(text: str) -> np.ndarray:
    with tempfile.NamedTemporaryFile(suffix=".wav") as file:
        subprocess.run(["flite", "-voice", "slt", "-t", text, "-o", file.name], check=True)
        with wave.open(file.name) as sound:
            assert sound.getframerate() == RATE
            return np.frombuffer(sound.readframes(sound.getnframes()), "<i2").astype(float)


if __name__ == "__main__":
    main()
