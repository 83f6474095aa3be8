"""From a WAV file to samples, and how loud they are."""

from __future__ import annotations

import base64
import binascii
import io
import math
import wave

import numpy as np

RATE = 16_000
Array = np.ndarray


class SoundError(Exception):
    """The file cannot be listened to: why, and what to send."""


def read_sound(sent: object) -> Array:
    """The samples of a WAV file, float32 from -1 to 1.

    The file is base64 text or an array of uint8, as a tensor of bytes arrives.

    Raises:
        SoundError: there is none, it is broken or cut off, or not 16 kHz, mono, 16 bits.
    """
    if isinstance(sent, str):
        sent = _from_base64(sent)
    elif isinstance(sent, np.ndarray) and sent.dtype == np.uint8:
        sent = sent.tobytes()
    if not isinstance(sent, bytes) or not sent:
        raise SoundError(
            'no sound: send a WAV file under the key "audio", as base64 text or a tensor of bytes'
        )
    try:
        with wave.open(io.BytesIO(sent)) as file:
            form, frames = file.getparams(), file.readframes(file.getnframes())
    except (wave.Error, EOFError, RuntimeError) as error:  # the last: a chunk of a wrong size
        why = str(error) or "it ends too early"
        raise SoundError(f"expected a WAV file of PCM samples: {why}") from None
    if (form.framerate, form.nchannels, form.sampwidth) != (RATE, 1, 2):
        raise SoundError(
            f"the file has {form.framerate} samples a second, {form.nchannels} channel(s), "
            f"{8 * form.sampwidth} bits: send 16000, mono, 16 bits"
        )
    if len(frames) < 2 * form.nframes:
        raise SoundError("the file is cut off: it has fewer samples than its header says")
    return np.frombuffer(frames, "<i2").astype(np.float32) / 32768


def level_of(samples: Array) -> float:
    """Return the level of samples, in dB: 0 is the loudest square wave that a file can hold."""
    power = float(np.square(samples, dtype=np.float64).mean())
    return 10 * math.log10(max(power, 1e-10))


def _from_base64(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise SoundError('the text under the key "audio" is not base64') from None
