// The endpoints of a pool with their windows as bars. What is amiss stands first.

import { amount, count, milliseconds, percent, plural, seconds } from "./figures.js";
import { draw, heading, make, Rows, say, set } from "./nodes.js";

const COLLAPSED = 8;

const STANCES = {
  fresh: ["●", "good"],
  stale: ["◐", "warn"],
  starting: ["○", "quiet"],
  outage: ["○", "bad"],
  stalled: ["‖", "bad"],
  down: ["✕", "bad"],
};

export class Endpoints {
  constructor(name) {
    this.all = false;
    const body = make("tbody");
    this.rows = new Rows(body, (endpoint) => endpoint.address, () => new Row());
    this.caption = make("caption");
    this.table = make(
      "table",
      { class: "endpoints" },
      this.caption,
      make(
        "thead",
        {},
        make(
          "tr",
          {},
          heading("Endpoint"),
          heading("State"),
          heading("Window", "wide"),
          heading("Running", "number"),
          heading("Waiting", "number"),
          heading("KV cache", "number"),
          heading("Per token", "number"),
          heading("Page age", "number"),
        ),
      ),
      body,
    );
    this.more = make("button", { type: "button", class: "more", "aria-expanded": "false" });
    this.more.addEventListener("click", () => {
      this.all = !this.all;
      this.update(this.pool);
    });
    this.node = make("div", { class: "block" }, this.table, this.more);
    this.name = name;
  }

  update(pool) {
    this.pool = pool;
    const { endpoints, endpoint_count: known } = pool;
    const shown = this.all ? endpoints : endpoints.slice(0, COLLAPSED);
    const size = (each) => Math.max(each.limit, each.ours + each.foreign, each.capacity);
    const scale = Math.max(1, ...endpoints.map(size));
    this.rows.update(shown.map((endpoint) => ({ ...endpoint, scale })));
    const would = pool.would_be ? ", as they would be" : "";
    say(this.caption, known ? `Endpoints (${count(known)})${would}` : "Endpoints: there is none, so nothing can go.");
    set(this.table, { "data-empty": known ? null : "yes" });
    this.more.hidden = endpoints.length <= COLLAPSED;
    set(this.more, { "aria-expanded": this.all });
    const left = known > endpoints.length ? ` (of ${count(known)})` : "";
    const all = `Show all ${count(endpoints.length)} endpoints${left}`;
    say(this.more, this.all ? `Show the first ${COLLAPSED} endpoints` : all);
  }
}

class Row {
  constructor() {
    this.address = make("bdi", { class: "code" });
    this.dialect = make("span", { class: "quiet" });
    this.mark = make("span", { "aria-hidden": "true" });
    this.stance = make("span");
    this.bar = new Bar();
    this.error = make("p", { class: "error" });
    this.cells = ["Running", "Waiting", "KV", "Token", "Page"].map((label) =>
      make("td", { class: "number figure", "data-label": label }),
    );
    this.node = make(
      "tr",
      {},
      make("th", { scope: "row", role: "rowheader" }, this.address, " ", this.dialect),
      make("td", { class: "state" }, make("span", { class: "stance" }, this.mark, " ", this.stance)),
      make("td", { class: "window" }, this.bar.node, this.bar.words, this.error),
      ...this.cells,
    );
  }

  update(endpoint) {
    const [mark, tone] = STANCES[endpoint.stance] ?? ["?", "quiet"];
    set(this.node, { class: tone });
    say(this.address, endpoint.address);
    say(this.dialect, endpoint.dialect);
    say(this.mark, mark);
    say(this.stance, endpoint.removed ? `${endpoint.stance}, removed` : endpoint.stance);
    this.bar.update(endpoint);
    const error = tone === "good" || tone === "quiet" ? "" : endpoint.last_error;
    say(this.error, error);
    this.error.hidden = !error;
    const figures = [
      count(endpoint.running),
      count(endpoint.waiting),
      percent(endpoint.kv),
      milliseconds(endpoint.tpot_s),
      endpoint.page_age_s === null ? "never" : seconds(endpoint.page_age_s),
    ];
    this.cells.forEach((cell, at) => say(cell, figures[at]));
  }
}

// All of a pool to one scale, so that they can be compared; with some space left for the marks at the end.
class Bar {
  constructor() {
    const part = (name) => draw("rect", { class: name, height: "100%" });
    this.parts = { track: part("track"), room: part("room"), ours: part("ours"), foreign: part("foreign") };
    this.limit = draw("rect", { class: "limit", width: 2, height: "100%" });
    this.capacity = draw("circle", { class: "capacity", cy: "50%", r: 3 });
    const shapes = [...Object.values(this.parts), this.limit, this.capacity];
    this.node = draw("svg", { class: "bar-plot", "aria-hidden": "true" }, ...shapes);
    this.words = make("p", { class: "bar-words figure" });
    set(this.parts.track, { x: "0%", width: "100%" });
  }

  update(endpoint) {
    const { ours, foreign, room, limit, capacity, queue_target: target, scale } = endpoint;
    const share = (value) => `${((98 * value) / scale).toFixed(2)}%`;
    set(this.parts.ours, { x: "0%", width: share(ours) });
    set(this.parts.foreign, { x: share(ours), width: share(foreign) });
    set(this.parts.room, { x: share(ours + foreign), width: share(room) });
    set(this.limit, { x: share(limit) });
    set(this.capacity, { cx: share(capacity) });
    const theirs = endpoint.others ? ` (${count(endpoint.others)} of other replicas)` : "";
    const others = foreign ? ` + ${count(foreign)} foreign${theirs}` : "";
    const part = endpoint.claim === null ? "" : `, this replica's part is ${amount(endpoint.claim)}`;
    const floor = endpoint.at_floor ? ", at its floor" : "";
    const lost = endpoint.turned_away + endpoint.failed;
    const faults = lost ? `; ${plural(lost, "request", "requests")} turned away or failed` : "";
    const may = limit ? ` of ${amount(limit)}, free slots ${amount(room)}` : ", nothing may go";
    const learnt = `(R ${amount(capacity)}, q ${amount(target)}${floor})`;
    say(this.words, `${count(ours)} ours${others}${may} ${learnt}${part}${faults}`);
  }
}
