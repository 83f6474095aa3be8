"""A page in Chromium, which asks with fetch and reads the stream of a chat as it comes."""

import sys

from browser import Browser
from told import HELLO, TEXT, ability, same

PAGE = """
const ask = (content, more) => fetch("/v1/chat/completions", {
    method: "POST",
    headers: {"content-type": "application/json"},
    body: JSON.stringify({model: "scripted", messages: [{role: "user", content}], ...more}),
});
const events = async (answer) => {
    const found = [];
    let text = "";
    for await (const piece of answer.body.pipeThrough(new TextDecoderStream())) {
        text += piece;
        let end;
        while ((end = text.indexOf("\\n\\n")) >= 0) {
            found.push(text.slice(0, end).replace(/^data: /, ""));
            text = text.slice(end + 2);
        }
    }
    return found;
};
"""


def run(page, expression):
    """Return the value of an expression with `ask` and `events` at hand."""
    return page.run(f"(async () => {{ {PAGE}; return {expression}; }})()")


with Browser() as page:
    page.open(sys.argv[1] + "/v1/models")

    @ability("chat")
    def chat():
        answer = run(page, f"(await ask({HELLO[0]['content']!r})).json()")
        same(answer["choices"][0]["message"]["content"], TEXT)

    @ability("stream")
    def stream():
        told = 'JSON.parse(each).choices[0].delta.content ?? ""'
        found = (
            f"(await events(await ask('hello', {{stream: true}}))).slice(0, -1).map(each => {told})"
        )
        same("".join(run(page, found)), TEXT)

    @ability("errors")
    def errors():
        same(run(page, "(await ask('refuse')).status"), 400)
        found = (
            "JSON.parse((await events(await ask('fail late', {stream: true}))).at(-1)).error.code"
        )
        same(run(page, found), "53")
