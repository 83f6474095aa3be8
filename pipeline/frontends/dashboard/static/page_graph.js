// The graph: the server says in which column and row an Op stands, here that becomes pixels.

import { draw, make, say } from "./page_dom.js";
import { digits, duration } from "./page_figures.js";

const OP = { narrowest: 96, least: 150, most: 210, height: 100, heightIfNarrow: 152 };
const LINE = 22; // of facts, which the Ops have one more of if some have sequences
const END = { width: 88, height: 34 };
const GAP = { wide: 64, least: 28, rows: 16, rowsIfNarrow: 8 };
const WIRE_ROWS = 0.3; // of an Op's: what a wire takes that passes a column
const ENDS = { "@request": "Request", "@response": "Response" };
const TURN = 22; // beside a band
const MOST_UPRIGHT = 12; // columns that stand in one above the other
const HIGH = 0.7; // from that load on an Op is shown as busy

export class GraphView {
  #parent;
  #nodes = new Map();
  #shares = new Map();
  #drawn = "";

  constructor(parent) {
    this.#parent = parent;
  }

  /** Draw the graph, if it or the place for it has changed. */
  show(graph, width, hasSequences) {
    const drawn = `${width} ${hasSequences} ${JSON.stringify(graph)}`;
    if (drawn === this.#drawn || width <= 0) return;
    this.#drawn = drawn;
    const plan = planned(graph, width, hasSequences ? LINE : 0);
    this.#nodes = new Map(graph.boxes.map((node) => [node.name, card(node, plan.boxes.get(node.name))]));
    this.#parent.style.width = `${plan.width}px`;
    this.#parent.style.height = `${plan.height}px`;
    this.#shares = new Map();
    this.#parent.replaceChildren(wires(graph, plan, this.#shares), ...[...this.#nodes.values()].map((node) => node.root));
  }

  /** Fill in one Op's figures. */
  fill(op, figures, isBusiest) {
    const node = this.#nodes.get(op.name);
    if (!node) return;
    const { workers } = op;
    const isDown = workers.up === 0;
    const isWeak = workers.up < workers.wanted || workers.stuck > 0;
    const hasFailed = figures.failed > 0;
    node.root.className = `node ${isDown || hasFailed ? "bad" : isWeak ? "warn" : ""}`;
    say(node.tag, isDown ? "down" : hasFailed ? `${digits(figures.failed)} failed`
      : isWeak ? `${workers.up} of ${workers.wanted} up` : isBusiest ? "busiest" : "");
    node.tag.hidden = node.tag.textContent === "";
    node.tag.className = `tag ${isDown || hasFailed ? "bad" : "warn"}`;
    say(node.rate, `${digits(figures.rate)}/s`);
    say(node.p99, `p99 ${duration(figures.p99)}`);
    say(node.waiting, `${op.queued} waiting${op.joining ? `, ${op.joining} at join` : ""}`);
    node.waiting.title = `${op.queued} ready, waiting for a worker`
      + (op.joining ? `; ${op.joining} waiting for another branch` : "");
    node.waiting.className = op.queued > Math.max(4, 2 * op.running) ? "many" : "";
    say(node.batch, `batch ${digits(figures.batch)}`);
    const { used, slots, backlog } = op.sequences ?? {};
    node.slots.parentElement.hidden = slots === undefined;
    say(node.slots, slots === undefined ? "" : `${digits(used)} of ${digits(slots)} slots`);
    node.slots.title = backlog ? `${digits(backlog)} more sequences wait for a slot` : "";
    node.slots.className = backlog ? "many" : "";
    say(node.workers, `${workers.busy} of ${workers.up} busy`);
    say(node.share, figures.load === undefined ? "" : `${Math.round(100 * figures.load)} %`);
    node.load.style.width = `${100 * (figures.load ?? 0)}%`;
    node.load.className = figures.load >= HIGH ? "high" : "";
    for (const { to, sent, absent } of op.edges ?? []) {
      const share = this.#shares.get(`${op.name} ${to}`);
      if (share) say(share, absent > 0 ? `${digits((100 * sent) / (sent + absent))} %` : "");
    }
  }
}

function card(node, box) {
  const root = make("div", "node");
  root.style.left = `${box.x}px`;
  root.style.top = `${box.y}px`;
  root.style.width = `${box.width}px`;
  root.style.height = `${box.height}px`;
  root.title = node.kind;
  if (node.name in ENDS) {
    root.className = "node end";
    root.append(ENDS[node.name]);
    return { root };
  }
  const made = { root, tag: make("span", "tag"), load: make("i") };
  for (const name of ["rate", "p99", "waiting", "batch", "slots", "workers", "share"]) made[name] = make("span");
  made.tag.hidden = true;
  root.title = `${node.name}: ${node.kind}`;
  root.append(
    made.tag,
    make("h3", "", node.name),
    make("p", "facts", made.rate, made.p99),
    make("p", "facts", made.waiting, made.batch),
    make("p", "facts", made.slots),
    make("p", "facts", made.workers, made.share),
    make("div", "load", made.load),
  );
  return made;
}

// Geometry -------------------------------------------------------------------------------------

/** Boxes of all nodes: from left to right where that fits, else from top to bottom. */
function planned(graph, width, more) {
  const columns = new Map(graph.boxes.map((box) => [box.name, box.column]));
  const last = Math.max(...columns.values());
  const edges = [...graph.boxes.flatMap(({ row }) => [row - 0.5, row + 0.5]),
    ...graph.wires.flatMap((wire) => wire.through.flatMap(([, row]) => [row - WIRE_ROWS / 2, row + WIRE_ROWS / 2]))];
  const first = Math.min(...edges);
  const rows = Math.max(...edges) - first;
  const along = lengthAlong(last + 1, width);
  const across = lengthAcross(rows, width);
  const isFolded = along.size === 0 && last > MOST_UPRIGHT && inBand(width) > 1;
  const isUpright = !isFolded && along.size === 0 && (across.size >= OP.least || width < 700);
  if (isFolded) return folded(graph, columns, { first, rows, last, width, more });
  const { size, gap, rowGap } = isUpright ? across : along;
  const op = { width: Math.max(size, isUpright ? OP.narrowest : OP.least) };
  op.height = op.width < OP.least ? OP.heightIfNarrow + 2 * more : OP.height + more;
  const plan = { isUpright, op, columns, gap, rowGap, first };
  const deep = start(plan, last) + (isUpright ? END.height : END.width);
  const broad = rows * ((isUpright ? op.width : op.height) + rowGap);
  const margin = graph.wires.some((wire) => leadsBack(wire, plan)) ? 44 : 0;
  plan.width = isUpright ? broad + margin : deep;
  plan.height = isUpright ? deep : broad + margin;
  plan.boxes = new Map(graph.boxes.map((box) => [box.name, boxOf(plan, box)]));
  return plan;
}

/** How many columns a band has. */
const inBand = (width) => Math.floor((width - 2 * TURN + GAP.least) / (OP.least + GAP.least));

/** Boxes in bands, like lines of text, for a graph that is too long for one line or one column. */
function folded(graph, columns, { first, rows, last, width, more }) {
  const gap = GAP.least;
  const inner = width - 2 * TURN; // turns are at the ends of the bands
  const perBand = inBand(width);
  const op = { width: Math.floor((inner + gap) / perBand) - gap, height: OP.height + more };
  const margin = graph.wires.some((wire) => columns.get(wire.target) <= columns.get(wire.source)) ? 44 : 0;
  const band = rows * (op.height + GAP.rows) + margin + GAP.least;
  const plan = { isUpright: false, op, columns, gap, rowGap: GAP.rows, first, perBand, band };
  plan.width = width;
  plan.height = (Math.floor(last / perBand) + 1) * band - GAP.least;
  plan.boxes = new Map(graph.boxes.map((box) => [box.name, boxOf(plan, box)]));
  return plan;
}

/** The width of an Op, and the gaps, if the rows stand side by side. */
function lengthAcross(rows, width) {
  const wide = Math.floor(width / rows - GAP.rows);
  if (wide >= OP.least) return { size: Math.min(OP.most, wide), gap: GAP.least, rowGap: GAP.rows };
  return { size: Math.floor(width / rows - GAP.rowsIfNarrow), gap: GAP.least, rowGap: GAP.rowsIfNarrow };
}

/** The width of an Op, and the gap beside it, if all columns stand side by side. */
function lengthAlong(columns, width) {
  const inner = Math.max(1, columns - 2);
  for (const gap of [GAP.wide, GAP.least]) {
    const size = Math.floor((width - 2 * END.width - (columns - 1) * gap) / inner);
    if (size >= OP.least) return { gap, rowGap: GAP.rows, size: Math.min(OP.most, size) };
  }
  return { gap: GAP.least, rowGap: GAP.rows, size: 0 };
}

/** Where a column begins, in the direction of the requests. */
function start(plan, column) {
  if (plan.perBand) return TURN + (column % plan.perBand) * (plan.op.width + plan.gap);
  if (column === 0) return 0;
  const end = plan.isUpright ? END.height : END.width;
  const op = plan.isUpright ? plan.op.height : plan.op.width;
  return end + plan.gap + (column - 1) * (op + plan.gap);
}

function boxOf(plan, { name, column, row }) {
  const isEnd = name in ENDS;
  const { width, height } = isEnd ? END : plan.op;
  const along = start(plan, column);
  const middle = (row - plan.first) * ((plan.isUpright ? plan.op.width : plan.op.height) + plan.rowGap);
  const down = plan.perBand ? Math.floor(column / plan.perBand) * plan.band : 0;
  return plan.isUpright
    ? { x: middle - width / 2, y: along, width, height }
    : { x: along, y: down + middle - height / 2, width, height, down };
}

// Lines ----------------------------------------------------------------------------------------

function wires(graph, plan, shares) {
  const picture = draw("svg", { "aria-hidden": "true" });
  const marker = draw("marker", { id: "arrow", viewBox: "0 0 8 8", refX: 7, refY: 4,
    markerWidth: 8, markerHeight: 8, markerUnits: "userSpaceOnUse", orient: "auto" });
  marker.append(draw("path", { d: "M0 0 8 4 0 8z", class: "arrow" }));
  const definitions = draw("defs");
  definitions.append(marker);
  picture.append(definitions);
  for (const wire of graph.wires) {
    const d = leadsBack(wire, plan) ? back(wire, plan) : onwards(wire, plan);
    const name = wire.is_jump ? "wire jump" : "wire";
    const path = draw("path", { d, class: name, "marker-end": "url(#arrow)" });
    const { x, y } = path.getPointAtLength(path.getTotalLength() / 2);
    const share = draw("text", { x, y: y - 4, class: "share" });
    shares.set(`${wire.source} ${wire.target}`, share);
    picture.append(path, share);
  }
  return picture;
}

function leadsBack(wire, plan) {
  return plan.columns.get(wire.target) <= plan.columns.get(wire.source);
}

function onwards(wire, plan) {
  const passed = wire.through.map(([column, row]) => boxOf(plan, { name: "", column, row }));
  const stops = [plan.boxes.get(wire.source), ...passed, plan.boxes.get(wire.target)];
  let path = `M${exit(stops[0], plan)}`;
  for (const [index, stop] of stops.slice(1).entries()) {
    const [from, to] = [exit(stops[index], plan), entry(stop, plan)];
    path += stops[index].down === stop.down ? curve(from, to, plan.isUpright) : turn(from, to, stop.down - GAP.least / 2);
    if (index < stops.length - 2) path += `L${exit(stop, plan)}`;
  }
  return path;
}

const entry = (box, plan) =>
  plan.isUpright ? [box.x + box.width / 2, box.y] : [box.x, box.y + box.height / 2];
const exit = (box, plan) =>
  plan.isUpright ? [box.x + box.width / 2, box.y + box.height] : [box.x + box.width, box.y + box.height / 2];

function curve([x, y], [toX, toY], isUpright) {
  const [midX, midY] = [(x + toX) / 2, (y + toY) / 2];
  return isUpright ? `C${x},${midY} ${toX},${midY} ${toX},${toY}` : `C${midX},${y} ${midX},${toY} ${toX},${toY}`;
}

/** From the end of a band to the beginning of the next one, between both. */
function turn([x, y], [toX, toY], between) {
  return `C${x + TURN},${y} ${x + TURN},${between} ${x},${between}L${toX},${between}C${toX - TURN},${between} ${toX - TURN},${toY} ${toX},${toY}`;
}

/** A jump back: an arc below, or on the right of, both Ops. */
function back(wire, { boxes, isUpright }) {
  const [from, to] = [boxes.get(wire.source), boxes.get(wire.target)];
  const apart = from === to ? 24 : 0;
  if (isUpright) {
    const [x, y, toX, toY] = [from.x + from.width, from.y + from.height / 2 + apart,
      to.x + to.width, to.y + to.height / 2 - apart];
    return `M${x},${y}C${x + 46},${y} ${toX + 46},${toY} ${toX},${toY}`;
  }
  const [x, y, toX, toY] = [from.x + from.width / 2 + apart, from.y + from.height,
    to.x + to.width / 2 - apart, to.y + to.height];
  return `M${x},${y}C${x},${y + 46} ${toX},${toY + 46} ${toX},${toY}`;
}
