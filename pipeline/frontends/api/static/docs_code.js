// The same request in other languages, as text. Files are read from disk there.

const MARK = "\u0001";

// JSON.stringify writes the mark as an escape.
const marked = (text) => text.replaceAll("\\u0001", MARK);

/** Return JSON with what `stands` returns for the name of each file in the place of its contents. */
function withFiles(request, files, indent, stands) {
  const shown = { ...request };
  for (const [key, name] of Object.entries(files)) shown[key] = MARK + name + MARK;
  const text = marked(JSON.stringify(shown, null, indent));
  return text.replace(new RegExp(`"${MARK}(.*?)${MARK}"`, "g"), (_, name) => stands(name));
}

const shell = (text) => `'${text.replaceAll("'", "'\\''")}'`;

function curl(url, request, files, streams) {
  const lines = [`curl ${streams ? "-N " : ""}${shell(url)}`, "-H 'content-type: application/json'"];
  if (streams) lines.push("-H 'accept: text/event-stream'");
  const parts = withFiles(request, files, undefined, (name) => `${MARK}${name}${MARK}`).split(MARK);
  if (parts.length === 1) lines.push(`-d ${shell(parts[0])}`);
  else {
    const pieces = parts.map((part, place) => (
      place % 2 ? `printf '"'; base64 -w0 ${shell(part)}; printf '"'` : `printf %s ${shell(part)}`
    ));
    return `(${pieces.join("; ")}) |\n  ${[...lines, "-d @-"].join(" \\\n    ")}`;
  }
  return lines.join(" \\\n  ");
}

/** Return a JSON value as Python writes it. */
function python(value, indent = "") {
  const inner = `${indent}    `;
  if (value === null) return "None";
  if (value === true) return "True";
  if (value === false) return "False";
  if (Array.isArray(value)) return `[${value.map((one) => python(one, inner)).join(", ")}]`;
  if (typeof value !== "object") return marked(JSON.stringify(value));
  const rows = Object.entries(value).map(([key, one]) => (
    `${inner}${JSON.stringify(key)}: ${python(one, inner)},\n`
  ));
  return rows.length ? `{\n${rows.join("")}${indent}}` : "{}";
}

function inPython(url, request, files, streams) {
  const shown = { ...request };
  for (const [key, name] of Object.entries(files)) shown[key] = MARK + name + MARK;
  const body = python(shown).replace(
    new RegExp(`"${MARK}(.*?)${MARK}"`, "g"),
    (_, name) => `base64.b64encode(open(${JSON.stringify(name)}, "rb").read()).decode()`,
  );
  const imports = Object.keys(files).length ? "import base64\nimport json" : "import json";
  const accept = streams ? ', "accept": "application/x-ndjson"' : "";
  const rest = streams
    ? "    for line in answer:\n        print(json.loads(line))"
    : "    print(json.load(answer))";
  return `${imports}\nfrom urllib.request import Request, urlopen\n\nrequest = ${body}\n`
    + `headers = {"content-type": "application/json"${accept}}\n`
    + `asked = Request(${JSON.stringify(url)}, json.dumps(request).encode(), headers)\n`
    + `with urlopen(asked) as answer:\n${rest}`;
}

function inJavaScript(url, request, files, streams) {
  const body = withFiles(request, files, 2, (name) => (
    `await base64(file) /* ${name.replaceAll("*/", "")} */`
  ));
  const accept = streams ? ', accept: "application/x-ndjson"' : "";
  const rest = streams
    ? 'const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();\n'
      + "let rest = \"\";\n"
      + "for (;;) {\n  const { done, value } = await reader.read();\n  if (done) break;\n"
      + '  const lines = (rest + value).split("\\n");\n  rest = lines.pop();\n'
      + "  for (const line of lines) console.log(JSON.parse(line));\n}"
    : "console.log(await answer.json());";
  const helper = Object.keys(files).length
    ? "const base64 = (file) => new Promise((done) => {\n  const reader = new FileReader();\n"
      + '  reader.onload = () => done(reader.result.split(",")[1]);\n'
      + "  reader.readAsDataURL(file);\n});\n"
    : "";
  return `${helper}const answer = await fetch(${JSON.stringify(url)}, {\n  method: "POST",\n`
    + `  headers: { "content-type": "application/json"${accept} },\n`
    + `  body: JSON.stringify(${body.replaceAll("\n", "\n  ")}),\n});\n${rest}`;
}

const LANGUAGES = { curl, python: inPython, javascript: inJavaScript };

/** Return a request in a language: "curl", "python" or "javascript". */
export function code(language, url, { request, files }, streams) {
  return LANGUAGES[language](url, request, files, streams);
}
