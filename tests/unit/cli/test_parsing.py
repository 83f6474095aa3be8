"""Values of options: an invalid number is an error before anything is done."""

from __future__ import annotations

import pytest

from pipeline.cli.main import main, parser_of


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["client", ":1/x", "--timeout", "nan"], "expected a number from 0, found 'nan'"),
        (["client", ":1/x", "--timeout=-1"], "expected a number from 0, found '-1'"),
        (["client", ":1/x", "--timeout", "1e300"], "expected a number to 86400, found '1e300'"),
        (["bench", ":1/x", "--seconds", "0"], "expected more than 0, found '0'"),
        (["bench", ":1/x", "--concurrency", "0"], "expected at least 1, found '0'"),
        (["bench", ":1/x", "--concurrency", "x"], "expected a whole number from 0, found 'x'"),
        (["cluster", "up", "x.py", "--num-cpus=-1"], "expected a number from 0, found '-1'"),
        (["cluster", "up", "x.py", "--grace", "inf"], "expected a number from 0, found 'inf'"),
        (["cluster", "local", "--nodes", "0"], "expected at least 1, found '0'"),
    ],
)
def test_an_invalid_number_of_an_option_is_refused(words, told, capsys):
    with pytest.raises(SystemExit):
        main(words)
    assert told in capsys.readouterr().err


def test_a_bench_may_do_without_its_warm_up():
    assert parser_of("bench").parse_args([":1/x", "--warmup", "0"]).warmup == 0


@pytest.mark.parametrize("header", ["a:b\nc: d", "é: x", "a: 失", "a b: c", ": c", "nothing"])
def test_an_invalid_header_is_refused(header, capsys):
    assert main(["client", ":1/x", "a=1", "--header", header]) == 1
    assert "expected NAME:VALUE" in capsys.readouterr().err
