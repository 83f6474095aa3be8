"""A tokenizer in a folder, of words and nothing else, so that none is fetched."""

import json
from pathlib import Path

from tokenizers import Tokenizer, models, pre_tokenizers

WORDS = ["[UNK]", "[EOS]", "Hello", "from", "the", "scripted", "model"]


def tokenizer_in(folder: Path) -> Path:
    """Write the tokenizer as Hugging Face's tools read it."""
    spare = [f"w{number}" for number in range(2000)]  # what prompts are made up of
    numbers = {word: number for number, word in enumerate([*WORDS, *spare])}
    tokenizer = Tokenizer(models.WordLevel(numbers, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    about = {"unk_token": "[UNK]", "eos_token": "[EOS]"}
    about["tokenizer_class"] = "PreTrainedTokenizerFast"
    (folder / "tokenizer_config.json").write_text(json.dumps(about))
    return folder
