// The page of a repository: asks for the models once a second, and has them loaded and unloaded.

import { arrange, byId, make, say } from "./page_dom.js";
import { digits, duration, growth, ofService, percentile } from "./page_figures.js";

const EVERY_MS = 1000;
const LONGEST_MS = 8000; // between questions to a server that does not answer
const PATIENCE_MS = 8000;
const KEPT_MS = 310_000;
const STAGES = ["queue", "input", "infer", "output"];
const CELLS = ["version", "state", "buttons", "rate", "p50", "p99", "where", "batch", "waiting", "running",
  "workers", "failed"];
const CLASSES = { where: "wide", state: "left", buttons: "left" };
const PILLS = { READY: "good", LOADING: "warn", UNLOADING: "warn", UNAVAILABLE: "bad" };
const KINDS = { thread: "threads", process: "processes" };

const rows = new Map();
const busy = new Map(); // what was asked for, by model
let statuses = [];
let pause_ms = EVERY_MS;

// Asking ---------------------------------------------------------------------------------------

async function ask() {
  try {
    const answer = await fetch("models.json", { cache: "no-store", signal: AbortSignal.timeout(PATIENCE_MS) });
    if (!answer.ok) throw new Error(`status ${answer.status}`);
    const status = await answer.json();
    if (statuses.length && status.time_ms < statuses.at(-1).time_ms) statuses = [];
    if (status.time_ms !== statuses.at(-1)?.time_ms) statuses.push(status);
    statuses = statuses.filter((each) => each.time_ms >= status.time_ms - KEPT_MS);
    pause_ms = EVERY_MS;
    document.documentElement.classList.remove("stale");
  } catch {
    pause_ms = Math.min(2 * pause_ms, LONGEST_MS);
    document.documentElement.classList.add("stale");
    pill(byId("state"), "bad", "No answer");
    return;
  }
  show();
}

async function keepAsking() {
  if (!document.hidden) await ask();
  setTimeout(keepAsking, pause_ms);
}

// Figures --------------------------------------------------------------------------------------

const keyOf = (model) => `${model.name}/${model.version}`;

/** The status that the last seconds begin with; undefined if there is only one. */
function before() {
  const seconds = Number(document.querySelector("input[name=window]:checked").value);
  const since = statuses.at(-1).time_ms - seconds * 1000 - 500;
  const found = statuses.find((status) => status.time_ms >= since);
  return found === statuses.at(-1) ? undefined : found;
}

/** The recent figures of a model; a reload resets them. */
function figures(model, was, passed_s) {
  if (!model.figures) return {};
  const { counters, workers } = model.figures;
  const older = was?.figures?.counters;
  const isOlder = older && older.succeeded <= counters.succeeded && older.executions <= counters.executions;
  const grown = growth(counters, isOlder ? older : undefined);
  const count = grown.succeeded;
  const each = (ns) => (count ? ns / count : undefined);
  return {
    rate: isOlder && passed_s ? count / passed_s : undefined,
    p50: percentile(grown.latency, 0.5),
    p99: percentile(grown.latency, 0.99),
    batch: grown.executions ? grown.requests / grown.executions : undefined,
    failed: ofService(grown.failed),
    load: isOlder && passed_s && workers?.up
      ? Math.min(1, grown.busy_ns / (passed_s * 1e9 * workers.up)) : undefined,
    queue: each(grown.queue_ns),
    input: each(grown.input_ns),
    infer: each(grown.infer_ns),
    output: each(grown.output_ns),
  };
}

const spent = (found) => STAGES.reduce((sum, stage) => sum + (found[stage] ?? 0), 0);
const sum = (values) => values.reduce((all, value) => all + (value ?? 0), 0);

// Showing --------------------------------------------------------------------------------------

function pill(element, kind, text) {
  element.className = `pill ${kind}`;
  say(element, text);
}

function show() {
  const now = statuses.at(-1);
  if (!now) return;
  const was = before();
  const passed_s = was && (now.time_ms - was.time_ms) / 1000;
  const older = new Map(was?.models.map((model) => [keyOf(model), model]));
  const found = now.models.map((model) => figures(model, older.get(keyOf(model)), passed_s));
  byId("main").hidden = false;
  say(byId("name"), now.name);
  document.title = now.name;
  pill(byId("state"), now.is_ready ? "good" : "warn", now.is_ready ? "Ready" : "Not ready");
  say(byId("about"), `${now.models.length} ${now.models.length === 1 ? "model" : "models"} · version ${now.version}`);
  tiles(now, found);
  table(now, found);
}

function tiles(now, found) {
  const ready = now.models.filter((model) => model.state === "READY").length;
  say(byId("ready"), `${ready} of ${now.models.length}`);
  const count = (state) => now.models.filter((model) => model.state === state).length;
  const said = [["LOADING", "loading"], ["UNLOADING", "unloading"], ["UNAVAILABLE", "not available"]]
    .filter(([state]) => count(state)).map(([state, words]) => `${count(state)} ${words}`);
  say(byId("ready_more"), said.join(", "));
  const rates = found.map((each) => each.rate).filter((rate) => rate !== undefined);
  say(byId("rate"), rates.length ? `${digits(sum(rates))}/s` : "–");
  say(byId("rate_more"), `${sum(now.models.map((model) => model.figures?.counters.succeeded)).toLocaleString("en")} since they were loaded`);
  say(byId("running"), digits(sum(now.models.map((model) => model.figures?.running))));
  say(byId("running_more"), `${digits(sum(now.models.map((model) => model.figures?.queued)))} of them wait`);
  const failed = sum(found.map((each) => each.failed));
  say(byId("failures"), digits(failed));
  byId("failures").className = failed ? "bad" : "";
  const loads = found.map((each) => each.load ?? -1);
  const most = Math.max(-1, ...loads);
  const index = most > 0.005 ? loads.indexOf(most) : -1;
  say(byId("busiest"), index < 0 ? "–" : now.models[index].name);
  say(byId("busiest_more"), index < 0 ? "all of them rest" : `instances ${Math.round(100 * most)} % busy`);
}

function table(now, found) {
  const wanted = byId("filter").value.trim().toLowerCase();
  const shown = now.models.map((model, index) => ({ model, own: found[index] }))
    .filter(({ model }) => model.name.toLowerCase().includes(wanted));
  const most = Math.max(...found.map(spent), 1);
  const keys = shown.map(({ model }) => keyOf(model));
  for (const key of rows.keys()) if (!keys.includes(key)) rows.delete(key);
  arrange(byId("models"), keys, newRow);
  for (const { model, own } of shown) fill(rows.get(keyOf(model)), model, own, most, now.loads);
  byId("models_none").hidden = shown.length > 0;
}

function newRow(key) {
  const title = make("th");
  title.scope = "row";
  const row = { title, ...Object.fromEntries(CELLS.map((cell) => [cell, make("td", CLASSES[cell] ?? "")])) };
  row.pill = make("span", "pill");
  row.reason = make("div", "reason");
  row.state.append(row.pill, row.reason);
  row.bar = make("div", "bar");
  row.bar.setAttribute("role", "img");
  for (const stage of STAGES) row.bar.append(make("i", stage));
  row.where.append(row.bar);
  for (const what of ["load", "unload"]) {
    row[what] = make("button", "small", what);
    row[what].type = "button";
    row.buttons.append(row[what]);
  }
  rows.set(key, row);
  return make("tr", "", title, ...CELLS.map((cell) => row[cell]));
}

function fill(row, model, own, most, loads) {
  say(row.title, model.name);
  row.title.title = model.name;
  say(row.version, model.version || "–");
  const state = busy.get(model.name) ?? (model.state || "not loaded");
  pill(row.pill, busy.has(model.name) ? "warn" : PILLS[model.state] ?? "", state.toLowerCase());
  const reason = model.reason === "unloaded" ? "" : model.reason ?? "";
  say(row.reason, reason);
  row.reason.title = reason;
  say(row.rate, digits(own.rate));
  say(row.p50, duration(own.p50));
  say(row.p99, duration(own.p99));
  say(row.batch, digits(own.batch));
  say(row.waiting, digits(model.figures?.queued));
  say(row.running, digits(model.figures?.running));
  say(row.workers, workers(model.figures?.workers));
  say(row.failed, digits(own.failed));
  row.failed.className = own.failed ? "bad" : "";
  for (const piece of row.bar.children) piece.style.width = `${(100 * (own[piece.className] ?? 0)) / most}%`;
  const said = STAGES.map((stage) => `${stage} ${duration(own[stage])}`).join(", ");
  row.bar.title = said;
  row.bar.setAttribute("aria-label", said);
  const isReady = model.state === "READY";
  row.load.hidden = !loads;
  row.unload.hidden = !loads || !isReady;
  say(row.load, isReady ? "Reload" : "Load");
  say(row.unload, "Unload");
  row.load.title = isReady ? "Loads what has changed in its folder" : "";
  for (const what of ["load", "unload"]) {
    row[what].disabled = busy.has(model.name);
    row[what].onclick = () => change(model.name, what);
  }
}

function workers(found) {
  if (!found) return "–";
  const { kind, up, wanted, busy: at_work } = found;
  const missing = up < wanted ? `, ${wanted - up} down` : "";
  return `${at_work} of ${up} ${up === 1 ? kind : (KINDS[kind] ?? kind)}${missing}`;
}

// Loading --------------------------------------------------------------------------------------

function news(text, isBad = false) {
  byId("news").hidden = false;
  byId("news").className = isBad ? "news bad" : "news";
  say(byId("news"), text);
}

async function change(name, what) {
  busy.set(name, `${what}ing`);
  show();
  try {
    const path = `v2/repository/models/${encodeURIComponent(name)}/${what}`;
    const answer = await fetch(path, { method: "POST", body: "{}" });
    if (!answer.ok) throw new Error((await answer.json()).error);
    news(`${name} is ${what}ed.`);
  } catch (error) {
    news(`${name} could not be ${what}ed: ${error.message}`, true);
  } finally {
    busy.delete(name);
    await ask();
  }
}

byId("filter").addEventListener("input", show);
for (const input of document.querySelectorAll("input[name=window]")) input.addEventListener("change", show);
document.addEventListener("visibilitychange", () => { if (!document.hidden) ask(); });
keepAsking();
