// The page: reads /openapi.json, makes a form of a pipeline's types, sends, shows the answer.

import { code } from "./docs_code.js";
import { Form } from "./docs_form.js";

const byId = (id) => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";
const NUMBERS = /\[[-+.,\deE\s]*\]/g; // lists of only numbers are printed on one line
const LONGEST = 400; // characters of a text in an answer that are shown

let api = null;
let operation = null;
let form = null;
let under_way = null;

function pill(element, text, kind = "") {
  element.textContent = text;
  element.className = `pill ${kind}`;
}

const urlOf = () => new URL(`api/${encodeURIComponent(byId("pipelines").value)}`, location.href).href;
const streams = () => Boolean(operation["x-streams"]) && byId("stream").checked;

async function load() {
  try {
    const found = await fetch("openapi.json");
    if (!found.ok) throw new Error(`${found.status}`);
    api = await found.json();
  } catch (error) {
    pill(byId("state"), `No openapi.json: ${error.message}`, "bad");
    return;
  }
  byId("name").textContent = api.info.title;
  document.title = `${api.info.title}: try a request`;
  const paths = Object.keys(api.paths).filter((path) => path.startsWith("/api/"));
  const names = paths.map((path) => path.slice("/api/".length));
  byId("pipelines").replaceChildren(...names.map((name) => new Option(name, name)));
  byId("which").hidden = names.length < 2;
  const wanted = decodeURIComponent(location.hash.slice(1));
  if (names.includes(wanted)) byId("pipelines").value = wanted;
  pill(byId("state"), "Ready", "good");
  byId("main").hidden = false;
  choose();
}

function choose() {
  stop();
  const path = `/api/${byId("pipelines").value}`;
  operation = api.paths[path].post;
  byId("path").textContent = `POST ${path}`;
  byId("about").textContent = operation.description ?? "";
  byId("stream_row").hidden = !operation["x-streams"];
  const asked = operation.requestBody.content["application/json"];
  form = new Form(byId("fields"), asked.schema, api.components.schemas, asked.example);
  clear();
  pill(byId("status"), "None yet");
  rewrite();
}

// The same in code ---------------------------------------------------------------------------------

async function rewrite() {
  const language = document.querySelector("input[name=language]:checked").value;
  try {
    byId("code").textContent = code(language, urlOf(), await form.read(), streams());
  } catch (error) {
    byId("code").textContent = error.message;
  }
}

// Sending ------------------------------------------------------------------------------------------

function clear() {
  byId("answer").textContent = "";
  byId("grown").hidden = true;
  byId("grown").textContent = "";
  byId("picture").hidden = true;
  for (const image of byId("picture").querySelectorAll("img")) URL.revokeObjectURL(image.src);
  byId("picture").replaceChildren();
}

function stop() {
  under_way?.abort();
}

async function send(event) {
  event?.preventDefault();
  if (under_way) return;
  let read;
  try {
    read = await form.read();
  } catch {
    return;
  }
  clear();
  const sent = new AbortController();
  under_way = sent;
  byId("send").disabled = true;
  byId("stop").hidden = false;
  pill(byId("status"), "Under way");
  const began = performance.now();
  const took = () => `${Math.round(performance.now() - began)} ms`;
  try {
    const headers = { "content-type": "application/json" };
    if (streams()) headers.accept = "application/x-ndjson";
    const body = JSON.stringify(read.request);
    const answer = await fetch(urlOf(), { method: "POST", headers, body, signal: sent.signal });
    const kind = answer.headers.get("content-type") ?? "";
    if (kind.includes("ndjson")) await grow(answer, took);
    else {
      await show(answer, kind);
      pill(byId("status"), `${answer.status}, ${took()}`, answer.ok ? "good" : "bad");
    }
  } catch (error) {
    pill(byId("status"), error.name === "AbortError" ? "Stopped" : `${error.message}`, "bad");
  } finally {
    under_way = null;
    byId("send").disabled = false;
    byId("stop").hidden = true;
  }
}

async function show(answer, kind) {
  if (kind.startsWith("image/")) {
    picture(await answer.blob());
    return;
  }
  const text = await answer.text();
  let found;
  try {
    found = JSON.parse(text);
  } catch {
    byId("answer").textContent = text.slice(0, 100000);
    return;
  }
  print(found);
  if (found.error) form.complain(String(found.error.message));
  const polygons = [];
  collect(found, polygons);
  if (polygons.length && form.picture) picture(form.picture, polygons);
}

function print(found) {
  const short = (key, value) => (
    typeof value === "string" && value.length > LONGEST
      ? `${value.slice(0, LONGEST)}... (${value.length} characters)` : value
  );
  const text = JSON.stringify(found, short, 2).slice(0, 100000);
  byId("answer").textContent = text.replace(NUMBERS, (list) => list.replace(/\s+/g, " "));
}

/** Show the parts of a stream as they come: their text put together, and the last part whole. */
async function grow(answer, took) {
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  let parts = 0;
  let has_failed = false;
  for (;;) {
    const { done, value } = await reader.read();
    if (done) break;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines.filter(Boolean)) {
      const part = JSON.parse(line);
      has_failed = has_failed || Boolean(part.error);
      if (!part.error) {
        parts += 1;
        byId("grown").hidden = false;
        byId("grown").append(...Object.values(part).filter((one) => typeof one === "string"));
      }
      print(part);
    }
    pill(byId("status"), `${parts} parts, ${took()}`, has_failed ? "bad" : "");
  }
  pill(byId("status"), `${parts} parts, ${took()}`, has_failed ? "bad" : "good");
}

// Pictures -----------------------------------------------------------------------------------------

const isPoint = (value) => (
  Array.isArray(value) && value.length === 2 && value.every((one) => typeof one === "number")
);

/** Collect what is a polygon in an answer, or in JSON that is text of it: three or more points. */
function collect(value, polygons) {
  if (typeof value === "string") value = parsed(value);
  if (polygons.length > 2000 || value === null || typeof value !== "object") return;
  if (Array.isArray(value) && value.length >= 3 && value.every(isPoint)) polygons.push(value);
  else for (const one of Object.values(value)) collect(one, polygons);
}

function parsed(text) {
  if (!/^\s*[[{]/.test(text)) return null;
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}

function picture(blob, polygons = []) {
  const image = document.createElement("img");
  image.alt = polygons.length ? `The picture, with ${polygons.length} lines drawn` : "The answer";
  image.addEventListener("load", () => {
    const svg = document.createElementNS(SVG, "svg");
    svg.setAttribute("viewBox", `0 0 ${image.naturalWidth} ${image.naturalHeight}`);
    svg.setAttribute("aria-hidden", "true");
    for (const points of polygons) {
      const polygon = document.createElementNS(SVG, "polygon");
      polygon.setAttribute("points", points.map((point) => point.join(",")).join(" "));
      svg.append(polygon);
    }
    byId("picture").append(svg);
  });
  image.src = URL.createObjectURL(blob);
  byId("picture").replaceChildren(image);
  byId("picture").hidden = false;
}

async function copy() {
  try {
    await navigator.clipboard.writeText(byId("code").textContent);
    byId("copy").textContent = "Copied";
  } catch { // without https a page may not: the text is selected instead
    getSelection().selectAllChildren(byId("code"));
    byId("copy").textContent = "Selected";
  }
  setTimeout(() => { byId("copy").textContent = "Copy"; }, 1500);
}

byId("form").addEventListener("submit", send);
byId("form").addEventListener("input", rewrite);
byId("form").addEventListener("change", rewrite);
byId("form").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) send(event);
});
byId("stop").addEventListener("click", stop);
byId("copy").addEventListener("click", copy);
byId("pipelines").addEventListener("change", choose);
for (const radio of document.querySelectorAll("input[name=language]")) {
  radio.addEventListener("change", rewrite);
}
load();
