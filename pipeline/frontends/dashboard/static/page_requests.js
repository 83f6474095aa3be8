// Recent requests: a line each, and behind it the way of the request through the Ops.

import { arrange, make, say } from "./page_dom.js";
import { BY_CALLERS, ago, duration } from "./page_figures.js";

const STAGES = [
  ["queue", "queue", "ready_ns", "start_ns"],
  ["input", "preprocess", "start_ns", "prepared_ns"],
  ["infer", "process", "prepared_ns", "processed_ns"],
  ["output", "postprocess", "processed_ns", "end_ns"],
  ["loop", "waiting for the event loop (or Python's GIL)", "end_ns", "taken_ns"],
];
const EDGES = { "@unpack": "RequestOp", "@pack": "ResponseOp" };
const WHY = {
  rejected: "its time was over before it ran",
  canceled: "the caller went away",
  backend: "an Op failed or took too long",
  other: "a worker was lost, or the server stops",
  product: "it could not be served as it was",
};

export class RequestsView {
  #parent;
  #none;
  #known = new Map();

  constructor(parent, none) {
    this.#parent = parent;
    this.#none = none;
  }

  /** Show these requests; one that somebody reads stays, though it is no longer among them. */
  show(requests, now_ms, copies, graph) {
    const shown = new Map(requests.map((request) => [keyOf(request), request]));
    const keys = [...shown.keys()];
    for (const child of this.#parent.children) {
      const { key } = child.dataset;
      if (child.open && !shown.has(key)) {
        shown.set(key, this.#known.get(key));
        keys.push(key);
      }
    }
    this.#known = shown;
    arrange(this.#parent, keys, (key) => row(shown.get(key), copies > 1, inputsOf(graph)));
    for (const child of this.#parent.children) {
      say(child.querySelector(".when"), ago(now_ms, shown.get(child.dataset.key).ended_ms));
    }
    this.#none.hidden = keys.length > 0;
  }
}

const keyOf = (request) => `${request.copy} ${request.data_id} ${request.ended_ms}`;

/** The names of the Ops that each Op reads, by its name. */
function inputsOf(graph) {
  const inputs = new Map();
  for (const { source, target, is_jump: isJump } of graph.wires) {
    if (!isJump) inputs.set(target, [...(inputs.get(target) ?? []), source]);
  }
  return inputs;
}

function row(request, isOfSeveral, inputs) {
  const root = make("details", request.outcome === "ok" || BY_CALLERS.has(request.outcome) ? "" : "failed");
  const parts = new Map(request.turns.map((turn) => [turn, parted(turn, request, inputs)]));
  const about = why(request, parts);
  const reason = make("span", "why", about);
  reason.title = about;
  root.append(make("summary", "", make("b", "", duration(request.took_ns)), reason, make("span", "when")));
  root.addEventListener("toggle", () => {
    if (root.open && root.children.length === 1) root.append(path(request, isOfSeveral, parts));
  });
  return root;
}

function why(request, partsOf) {
  if (request.outcome !== "ok") return request.error || WHY[request.outcome] || request.outcome;
  const parts = [...partsOf.values()].flat();
  const longest = parts.reduce((most, part) => (part.ns > most.ns ? part : most), { ns: -1 });
  return longest.ns > 0 ? `${duration(longest.ns)} of it: ${longest.text}` : "";
}

/** The stages of a turn that took time. */
function parted(turn, request, inputs) {
  const edge = EDGES[turn.op];
  const stages = STAGES.map(([name, label, from, to]) => ({
    name,
    from: turn[from],
    ns: turn[to] - turn[from],
    label: edge ? (name === "queue" ? "waiting to be let in" : label) : label,
    text: edge ? (name === "queue" ? "waiting to be let in" : edge) : `${label}${name === "loop" ? " behind" : " of"} ${turn.op}`,
  }));
  return [...joined(turn, request, inputs.get(turn.op) ?? []), ...stages].filter((part) => part.ns > 0);
}

/** The time from a join's first input to its last one. */
function joined(turn, request, sources) {
  if (sources.length < 2) return [];
  const arrived = request.turns
    .map((other) => ({ name: other.op === "@unpack" ? "@request" : other.op, at: other.taken_ns }))
    .filter(({ name, at }) => sources.includes(name) && at <= turn.ready_ns)
    .sort((one, other) => one.at - other.at);
  if (arrived.length < 2) return [];
  const [first, last] = [arrived[0], arrived.at(-1)];
  const label = `waiting for another branch (${last.name})`;
  return [{ name: "join", from: first.at, ns: turn.ready_ns - first.at, label, text: `${turn.op} ${label}` }];
}

function path(request, isOfSeveral, partsOf) {
  const root = make("div", "path");
  if (request.error) root.append(make("p", "error", request.error));
  const whole = Math.max(request.took_ns, 1);
  for (const turn of request.turns) root.append(track(turn, whole, partsOf.get(turn)));
  const axis = make("p", "axis", make("span", "", "0"), make("span", "", duration(whole / 2)),
    make("span", "", duration(whole)));
  root.append(make("div", "turn", make("span"), axis, make("span")), make("p", "more", identity(request, isOfSeveral)));
  return root;
}

function track(turn, whole, parts) {
  const bar = make("span", "track");
  for (const part of parts) {
    const piece = make("i", part.name);
    piece.style.left = `${(100 * part.from) / whole}%`;
    piece.style.width = `${(100 * part.ns) / whole}%`;
    bar.append(piece);
  }
  const isWell = turn.outcome === "ok";
  const root = make("div", isWell || BY_CALLERS.has(turn.outcome) ? "turn" : "turn bad", make("span", "", EDGES[turn.op] ?? turn.op), bar,
    make("span", "", duration(turn.end_ns - turn.ready_ns)));
  const batch = turn.op in EDGES ? [] : turn.batch_requests
    ? [`in a batch of ${turn.batch_requests}`] : ["it never ran"];
  root.title = [...(isWell ? [] : [turn.outcome]), ...parts.map((part) => `${part.label} ${duration(part.ns)}`),
    ...batch].join(", ") || "it took no time";
  bar.setAttribute("role", "img");
  bar.setAttribute("aria-label", root.title);
  return root;
}

function identity(request, isOfSeveral) {
  const known = [`data id ${request.data_id}`];
  if (request.log_id !== "0") known.push(`log id ${request.log_id}`);
  if (request.code) known.push(`err_no ${request.code}`);
  if (isOfSeveral) known.push(`copy ${request.copy}`);
  known.push(new Date(request.ended_ms).toLocaleTimeString());
  return known.join(" · ");
}
