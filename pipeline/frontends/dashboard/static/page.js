// The page: asks for the status once a second and shows what has changed.

import { arrange, byId, draw, make, say } from "./page_dom.js";
import { History, digits, duration, growth, ofService, percentile, total } from "./page_figures.js";
import { GraphView } from "./page_graph.js";
import { RequestsView } from "./page_requests.js";
import { SequencesView } from "./page_sequences.js";

const EVERY_MS = 1000;
const LONGEST_MS = 8000; // between questions to a server that does not answer
const PATIENCE_MS = 8000;

const statuses = new History();
const graph = new GraphView(byId("graph"));
const sequences = new SequencesView();
const slowest = new RequestsView(byId("slowest"), byId("slowest_none"));
const failed = new RequestsView(byId("failed"), byId("failed_none"));
const rows = new Map();
let pause_ms = EVERY_MS;

// Asking ---------------------------------------------------------------------------------------

async function ask() {
  try {
    const answer = await fetch(`status.json${location.search}`, { cache: "no-store", signal: AbortSignal.timeout(PATIENCE_MS) });
    if (!answer.ok) throw new Error(`status ${answer.status}`);
    statuses.add(await answer.json());
    pause_ms = EVERY_MS;
    document.documentElement.classList.remove("stale");
  } catch {
    pause_ms = Math.min(2 * pause_ms, LONGEST_MS);
    document.documentElement.classList.add("stale");
    pill("bad", "No answer");
    return;
  }
  show();
}

async function keepAsking() {
  if (!document.hidden) await ask();
  setTimeout(keepAsking, pause_ms);
}

// Showing --------------------------------------------------------------------------------------

const seconds = () => Number(document.querySelector("input[name=window]:checked").value);

function show() {
  const now = statuses.newest;
  if (!now) return;
  const before = statuses.before(seconds());
  byId("main").hidden = false;
  head(now);
  const passed_s = before && (now.time_ms - before.time_ms) / 1000;
  const pipeline = figures(now.pipeline, before?.pipeline, passed_s);
  const ops = now.ops.map((op, index) =>
    figures(op.counters, before?.ops[index].counters, passed_s, op.workers.up));
  tiles(now, pipeline);
  const busiest = busiestOf(now, ops);
  const hasSequences = now.ops.some((op) => op.sequences);
  graph.show(now.graph, byId("graph").parentElement.clientWidth, hasSequences);
  for (const [index, op] of now.ops.entries()) graph.fill(op, ops[index], index === busiest);
  table(now, pipeline, ops);
  sequences.show(now, before, passed_s);
  slowest.show(now.slowest, now.time_ms, now.copies, now.graph);
  failed.show(now.failed, now.time_ms, now.copies, now.graph);
}

/** What a model did in `passed_s`; from the start if that is undefined: then nothing per second. */
function figures(counters, before, passed_s, workers) {
  const grown = growth(counters, before);
  const count = grown.succeeded;
  const each = (ns) => (count ? ns / count : undefined);
  return {
    rate: passed_s && count / passed_s,
    p50: percentile(grown.latency, 0.5),
    p95: percentile(grown.latency, 0.95),
    p99: percentile(grown.latency, 0.99),
    first: percentile(grown.first_part, 0.5),
    gap: percentile(grown.part_gap, 0.5),
    batch: grown.executions ? grown.requests / grown.executions : undefined,
    failed: ofService(grown.failed),
    reasons: grown.failed,
    load: passed_s && workers ? Math.min(1, grown.busy_ns / (passed_s * 1e9 * workers)) : undefined,
    queue: each(grown.queue_ns),
    input: each(grown.input_ns),
    infer: each(grown.infer_ns),
    output: each(grown.output_ns),
  };
}

function pill(kind, text) {
  byId("state").className = `pill ${kind}`;
  say(byId("state"), text);
}

function head(now) {
  say(byId("name"), now.name);
  document.title = now.name;
  pill(now.is_ready ? "good" : "warn", now.is_ready ? "Ready" : "Not ready");
  const copies = now.copies > 1 ? [`${now.copies} copies`] : [];
  say(byId("about"), [`${now.ops.length} ${now.ops.length === 1 ? "Op" : "Ops"}`, ...copies,
    ...(now.version ? [`version ${now.version}`] : [])].join(" · "));
  byId("record").hidden = !now.can_record;
  byId("pipelines").hidden = !now.pipelines.length;
  arrange(byId("pipelines"), now.pipelines, (name) => linkTo(name, name === now.name));
}

function linkTo(name, isShown) {
  const link = make("a", "", name);
  link.href = `?${new URLSearchParams({ pipeline: name })}`;
  if (isShown) link.setAttribute("aria-current", "page");
  return link;
}

function tiles(now, pipeline) {
  say(byId("rate"), pipeline.rate === undefined ? "–" : `${digits(pipeline.rate)}/s`);
  say(byId("rate_more"), `${now.pipeline.succeeded.toLocaleString("en")} since the start`);
  say(byId("p99"), duration(pipeline.p99));
  const streams = pipeline.first === undefined ? ""
    : `; first part ${duration(pipeline.first)}, then every ${duration(pipeline.gap)}`;
  say(byId("p99_more"), `p50 ${duration(pipeline.p50)}, p95 ${duration(pipeline.p95)}${streams}`);
  say(byId("inside"), digits(now.inside));
  say(byId("inside_more"), `${digits(now.waiting)} wait to be let in`);
  say(byId("failures"), digits(pipeline.failed));
  byId("failures").className = pipeline.failed ? "bad" : "";
  say(byId("failures_more"), failures(now, pipeline));
  line("rate_line", now.minute.succeeded);
  line("p99_line", now.minute.p99_ns);
  line("inside_line", now.minute.inside);
}

function failures(now, pipeline) {
  const reasons = Object.entries(pipeline.reasons).filter(([, count]) => count > 0);
  const said = reasons.map(([reason, count]) => `${digits(count)} ${reason}`); // also by callers
  const since = ofService(now.pipeline.failed);
  const byCallers = total(now.pipeline.failed) - since; // which stand among the last failed, too
  const all = `${digits(since)} since the start${byCallers ? `, and ${digits(byCallers)} by callers` : ""}`;
  return [...(said.length ? [said.join(", ")] : [all]),
    ...(now.rejected ? [`${digits(now.rejected)} refused`] : [])].join("; ");
}

function busiestOf(now, ops) {
  const known = ops.map((op) => op.load ?? -1);
  const most = Math.max(...known);
  const index = most > 0.005 ? known.indexOf(most) : -1;
  say(byId("busiest"), index < 0 ? "–" : now.ops[index].name);
  byId("busiest").title = index < 0 ? "" : now.ops[index].name;
  say(byId("busiest_more"), index < 0 ? "all of them rest" : `workers ${Math.round(100 * most)} % busy`);
  return most >= 0.7 ? index : -1;
}

/** A small line of the last minute, a value a second: the server knows it, however long one looks. */
function line(id, values) {
  const most = Math.max(...values, Number.MIN_VALUE);
  const points = values.map((value, index) =>
    `${((index + 1) * 100) / values.length},${27 - (24 * value) / most}`);
  const picture = byId(id);
  if (!picture.firstChild) {
    picture.setAttribute("viewBox", "0 0 100 30");
    picture.setAttribute("preserveAspectRatio", "none");
    picture.append(draw("path"));
  }
  picture.firstChild.setAttribute("d", points.length > 1 ? `M${points.join("L")}` : "");
}

// Table ----------------------------------------------------------------------------------------

const CELLS = ["rate", "p50", "p95", "p99", "where", "batch", "waiting", "joining", "running", "workers", "failed"];

function table(now, pipeline, ops) {
  const keys = ["", ...now.ops.map((op) => op.name)]; // no Op has an empty name
  arrange(byId("ops"), keys, newRow);
  const most = Math.max(...ops.map(spent), 1);
  fillRow(rows.get(""), pipeline, spent(pipeline) || 1, now.inside, now.waiting);
  for (const [index, op] of now.ops.entries()) {
    const row = rows.get(op.name);
    fillRow(row, ops[index], most, op.running, op.queued);
    say(row.joining, digits(op.joining));
    const group = op.group ?? [];
    say(row.workers, workers(op.workers) + (group.length ? ", fused" : ""));
    row.workers.title = `${op.workers.wanted} configured, ${op.workers.up} up, ${op.workers.stuck} stuck`
      + (group.length ? `; in one trip: ${group.join(", ")}` : "");
  }
}

const KINDS = { thread: "threads", process: "processes" };

const spent = (op) => (op.queue ?? 0) + (op.input ?? 0) + (op.infer ?? 0) + (op.output ?? 0);

function workers({ busy, up, wanted, kind, restarts }) {
  const missing = up < wanted ? `, ${wanted - up} down` : "";
  const replaced = restarts ? `, ${restarts} replaced` : "";
  return `${busy} of ${up} ${up === 1 ? kind : (KINDS[kind] ?? kind)}${missing}${replaced}`;
}

function newRow(name) {
  const title = make("th", "", name || "whole pipeline");
  title.scope = "row";
  title.title = title.textContent;
  const root = make("tr", name ? "" : "whole", title);
  const row = Object.fromEntries(CELLS.map((cell) => [cell, make("td", cell === "where" ? "wide" : "")]));
  row.bar = make("div", "bar");
  row.bar.setAttribute("role", "img");
  for (const stage of ["queue", "input", "infer", "output"]) row.bar.append(make("i", stage));
  row.where.append(row.bar);
  root.append(...CELLS.map((cell) => row[cell]));
  rows.set(name, row);
  return root;
}

function fillRow(row, op, most, running, waiting) {
  say(row.rate, digits(op.rate));
  for (const cell of ["p50", "p95", "p99"]) say(row[cell], duration(op[cell]));
  say(row.batch, digits(op.batch));
  say(row.waiting, digits(waiting));
  say(row.running, digits(running));
  say(row.failed, digits(op.failed));
  row.failed.className = op.failed ? "bad" : "";
  const labels = { queue: "queue", input: "preprocess", infer: "process", output: "postprocess" };
  for (const piece of row.bar.children) piece.style.width = `${(100 * (op[piece.className] ?? 0)) / most}%`;
  const said = Object.entries(labels).map(([stage, label]) => `${label} ${duration(op[stage])}`).join(", ");
  row.bar.title = said;
  row.bar.setAttribute("aria-label", said);
}

// Recording ------------------------------------------------------------------------------------

function news(text, isBad = false) {
  byId("news").hidden = false;
  byId("news").className = isBad ? "news bad" : "news";
  say(byId("news"), text);
}

async function record(event) {
  event.preventDefault();
  const button = byId("record");
  if (button.getAttribute("aria-disabled")) return;
  button.setAttribute("aria-disabled", "true");
  news("Recording …");
  try {
    const answer = await fetch(button.href, { cache: "no-store" });
    if (!answer.ok) throw new Error((await answer.json()).err_msg);
    const trace = await answer.blob();
    save(trace, button.download);
    const cut = answer.headers.get("x-trace-cut") ? " It was cut: more happened than a viewer can show." : "";
    news(`Saved ${button.download}, ${digits(trace.size / 1e6)} MB. Open it in Perfetto or chrome://tracing.${cut}`);
  } catch (error) {
    news(`The recording failed: ${error.message}`, true);
  } finally {
    button.removeAttribute("aria-disabled");
  }
}

function save(blob, name) {
  const link = make("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}

byId("record").href += location.search.replace("?", "&");
byId("record").addEventListener("click", record);
for (const input of document.querySelectorAll("input[name=window]")) input.addEventListener("change", show);
new ResizeObserver(show).observe(byId("graph").parentElement);
document.addEventListener("visibilitychange", () => { if (!document.hidden) ask(); });
keepAsking();
