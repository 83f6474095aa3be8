// The table of sequences: there only if an Op has any.

import { arrange, byId, make, say } from "./page_dom.js";
import { digits } from "./page_figures.js";

const CELLS = ["slots", "backlog", "begun", "ended", "cut", "reaped", "lost"];
const COUNTED = ["cut", "reaped", "lost"]; // each of them is one too many

export class SequencesView {
  #rows = new Map();

  /** Show the Ops that have sequences; `before` and `passed_s` may be undefined. */
  show(now, before, passed_s) {
    const ops = now.ops.filter((op) => op.sequences);
    byId("sequences_card").hidden = ops.length === 0;
    arrange(byId("sequences"), ops.map((op) => op.name), (name) => this.#newRow(name));
    for (const { name, sequences } of ops) {
      const was = before?.ops.find((op) => op.name === name)?.sequences;
      fill(this.#rows.get(name), sequences, was, passed_s);
    }
  }

  #newRow(name) {
    const title = make("th", "", name);
    title.scope = "row";
    title.title = name;
    const row = Object.fromEntries(CELLS.map((cell) => [cell, make("td", cell === "slots" ? "wide" : "")]));
    row.bar = make("div", "bar", make("i", "infer"));
    row.told = make("span");
    row.slots.append(make("div", "slots", row.bar, row.told));
    this.#rows.set(name, row);
    return make("tr", "", title, ...CELLS.map((cell) => row[cell]));
  }
}

function fill(row, { used, slots, backlog, ...counts }, was, passed_s) {
  row.bar.firstChild.style.width = `${(100 * used) / Math.max(1, slots)}%`;
  row.bar.firstChild.className = backlog > 0 ? "full" : "infer";
  say(row.told, `${digits(used)} of ${digits(slots)}`);
  say(row.backlog, digits(backlog));
  row.backlog.className = backlog > 0 ? "many" : "";
  const grown = (name) => counts[name] - (was?.[name] ?? 0);
  for (const name of ["begun", "ended"]) {
    say(row[name], digits(was && passed_s ? grown(name) / passed_s : undefined));
    row[name].title = `${digits(counts[name])} since the start`;
  }
  for (const name of COUNTED) {
    say(row[name], digits(grown(name)));
    row[name].title = `${digits(counts[name])} since the start`;
    row[name].className = name === "lost" && grown(name) > 0 ? "bad" : "";
  }
}
