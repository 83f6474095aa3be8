"""`pipeline completion bash`, in bash; zsh and fish read theirs where they are there."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from pipeline.cli.main import main

ASK = """
COMP_WORDS=({words})
COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
_shtab_pipeline
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("pipeline gr", {"graph"}),
        ("pipeline --v", {"--version"}),
        ("pipeline check --st", {"--strict"}),
        ("pipeline graph --format m", {"mermaid"}),
        ("pipeline completion ''", {"bash", "zsh", "fish"}),
        ("pipeline completion -", {"-h", "--help"}),
        ("pipeline callers add --r", {"--roles"}),
    ],
)
def test_bash_offers_matching_words(words, offered, capsys):
    main(["completion", "bash"])
    script = capsys.readouterr().out + ASK.format(words=words)
    done = subprocess.run(
        ["bash", "--norc", "-c", script], capture_output=True, text=True, check=True, timeout=30
    )
    assert set(done.stdout.split()) == offered


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_reads_its_script(shell, capsys):
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    main(["completion", shell])
    script = capsys.readouterr().out
    done = subprocess.run([shell, "-n"], input=script, capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stderr) == (0, "")
