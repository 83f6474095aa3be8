"""What a client can do, told line by line: each ability and why it failed."""

import json
import sys
from contextlib import contextmanager

URL = sys.argv[1] + "/v1" if len(sys.argv) > 1 else ""
KEY = {"api_key": "none"}
HELLO = [{"role": "user", "content": "say hello"}]
TEXT = "Hello from the scripted model"
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOL = {"type": "function", "function": {"name": "weather", "parameters": CITY}}
ARGUMENTS = {"city": "Ada"}
PERSON = {"name": "Ada", "age": 36}


def saying(text):
    """Return the messages of a chat that says a text."""
    return [{"role": "user", "content": text}]


def same(found, expected):
    """Raise AssertionError where two values differ."""
    assert found == expected, f"expected {expected!r}, found {found!r}"


@contextmanager
def raises(kind):
    """Have the block end in an error of a kind."""
    try:
        yield
    except kind:
        return
    raise AssertionError(f"expected {kind.__name__}: there was no error")


def ability(name):
    """Run a function, and tell whether the client has the ability."""

    def run(function):
        failure = None
        try:
            function()
        except Exception as error:
            failure = f"{type(error).__name__}: {error}"
        print("told: " + json.dumps({"ability": name, "failure": failure}), flush=True)
        return function

    return run
