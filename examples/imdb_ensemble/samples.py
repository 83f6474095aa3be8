"""Short labelled reviews, written for this example, and a parser of the service's answers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class Sample(NamedTuple):
    """A review and whether its author liked the film."""

    text: str
    positive: bool


SAMPLES = (
    Sample("A wonderful film: warm, funny and beautifully acted. I loved every minute.", True),
    Sample("Two hours of my life wasted. The plot is stupid and the acting is awful.", False),
    Sample(
        "I did not expect much of a film about a lighthouse keeper.<br /><br />But the story grows "
        "on you, the two leads are superb, and the last scene is one of the best I have seen in "
        "years. Highly recommended!",
        True,
    ),
    Sample(
        "The trailer promised a clever thriller. What we got is boring, badly written and so "
        "predictable that half of the audience left early. Avoid it.",
        False,
    ),
    Sample(
        "No masterpiece, and some of the jokes are stupid, but it is fun, and I was never bored. "
        "Well worth a look.",
        True,
    ),
    Sample(
        "The actors are great and the music is beautiful, but the story falls flat. I was "
        "disappointed, lost interest after an hour, and would not recommend it.",
        False,
    ),
)


def read_scores(keys: Iterable[str], values: Iterable[str]) -> dict[str, float]:
    """Return the probability of a positive review by `bow`, by `cnn` and by both (`prediction`).

    Answers have arrays as numpy prints them, `array([0.93], dtype=float32)`, with one number each.
    """
    pairs = zip(keys, values, strict=True)
    return {key: float(text.partition("[")[2].partition("]")[0]) for key, text in pairs}


def verdict(score: float) -> str:
    """The word for a probability."""
    return "positive" if score > 0.5 else "negative"


def report(sample: Sample, scores: dict[str, float]) -> bool:
    """Print a review, what each model and the ensemble say; True if the ensemble is right."""
    said = verdict(scores["prediction"])
    members = "  ".join(f"{name} {scores[name]:.3f}" for name in ("bow", "cnn"))
    right = (said == "positive") == sample.positive
    print(f"  {sample.text}")
    print(f"    {members}  ensemble {scores['prediction']:.3f}  {said}, {_mark(right)}")
    return right


def _mark(right: bool) -> str:
    return "as its author says" if right else "which is WRONG"
