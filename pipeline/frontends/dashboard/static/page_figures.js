// Figures of a stretch of time: the differences of two statuses. Nothing here touches the page.

const KEPT_MS = 310_000;

/** Statuses of the last minutes. */
export class History {
  #statuses = [];

  add(status) {
    const last = this.#statuses.at(-1);
    if (last && status.time_ms <= last.time_ms) return; // the server answered two with one
    if (last && hasRestarted(last, status)) this.#statuses = [];
    this.#statuses.push(status);
    while (this.#statuses[0].time_ms < status.time_ms - KEPT_MS) this.#statuses.shift();
  }

  get newest() {
    return this.#statuses.at(-1);
  }

  /** The status that the last `seconds` begin with; undefined if there is only one yet. */
  before(seconds) {
    const since = this.newest.time_ms - seconds * 1000 - 500; // statuses come once a second
    const found = this.#statuses.find((status) => status.time_ms >= since);
    return found === this.newest ? undefined : found;
  }
}

/** Counters only grow, but when a server restarts, or one of its copies is too busy to answer. */
function hasRestarted(before, now) {
  return now.pipeline.succeeded < before.pipeline.succeeded
    || now.ops.length !== before.ops.length
    || now.ops.some((op, index) => op.counters.executions < before.ops[index].counters.executions);
}

const NOTHING = { succeeded: 0, failed: {}, requests: 0, executions: 0, latency: [], queue_latency: [],
  queue_ns: 0, input_ns: 0, infer_ns: 0, output_ns: 0, busy_ns: 0, parts: 0, first_part: [], part_gap: [] };

/** What counters grew by from `before` (undefined: from nothing) to `now`. */
export function growth(now, before = NOTHING) {
  const grown = {};
  for (const [name, value] of Object.entries(now)) {
    if (typeof value === "number") grown[name] = value - before[name];
    else if (Array.isArray(value)) grown[name] = value.map((count, i) => count - (before[name][i] ?? 0));
  }
  grown.failed = Object.fromEntries(
    Object.entries(now.failed).map(([why, count]) => [why, count - (before.failed[why] ?? 0)]));
  return grown;
}

/** Outcomes that say nothing about the health of the service. */
export const BY_CALLERS = new Set(["canceled", "product"]);

/** How many of these, by outcome, are failures of the service. */
export const ofService = (failed) =>
  total(Object.fromEntries(Object.entries(failed).filter(([why]) => !BY_CALLERS.has(why))));

export const total = (counts) => Object.values(counts).reduce((sum, count) => sum + count, 0);

/**
 * What a share `q` of the requests took at most, in ns; undefined if there were none. Bucket i
 * ends at 1 us * 2 ** (i / 4): within it the logarithm is taken to be spread evenly.
 */
export function percentile(histogram, q) {
  const wanted = q * total(histogram);
  let seen = 0;
  for (const [index, count] of histogram.entries()) {
    if (count && seen + count >= wanted) {
      const share = (wanted - seen) / count;
      return 1000 * 2 ** ((index - 1 + share) / 4);
    }
    seen += count;
  }
  return undefined;
}

const NONE = "–";

/** "850 µs", "12.4 ms", "1.25 s". */
export function duration(ns) {
  if (ns === undefined || Number.isNaN(ns)) return NONE;
  if (ns < 999.5) return `${Math.round(ns)} ns`;
  if (ns < 999.5e3) return `${digits(ns / 1e3)} µs`;
  if (ns < 999.5e6) return `${digits(ns / 1e6)} ms`;
  return `${digits(ns / 1e9)} s`;
}

/** Three digits, more of them for what is larger. */
export function digits(value) {
  if (value === undefined || !Number.isFinite(value)) return NONE;
  if (value !== 0 && value < 0.095) return "< 0.1";
  const after = value >= 99.95 || Number.isInteger(value) ? 0 : value >= 9.995 ? 1 : 2;
  return value.toLocaleString("en", { minimumFractionDigits: after, maximumFractionDigits: after });
}

/** How long ago that was. */
export function ago(now_ms, then_ms) {
  const seconds = Math.max(0, Math.round((now_ms - then_ms) / 1000));
  if (seconds < 60) return `${seconds} s ago`;
  if (seconds < 3600) return `${Math.round(seconds / 60)} min ago`;
  if (seconds < 86400) return `${Math.round(seconds / 3600)} h ago`;
  return `${Math.round(seconds / 86400)} d ago`;
}
