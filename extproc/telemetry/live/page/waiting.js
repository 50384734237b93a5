// Who waits and why: the flows that have waited for longest. A row can be opened for the whole explanation of the
// flow's next request; one that is open stays, also when nothing of it waits any more.

import { full, Why } from "./classes.js";
import { amount, count, plural, seconds } from "./figures.js";
import { heading, make, Rows, say, set } from "./nodes.js";

const AGAIN_MS = 3000;
let opened = 0;

export class Waiting {
  constructor() {
    this.table = make(
      "table",
      { class: "waiting" },
      (this.caption = make("caption")),
      make(
        "thead",
        {},
        make(
          "tr",
          {},
          heading("Tenant"),
          heading("Class"),
          heading("Held", "number"),
          heading("In flight", "number"),
          heading("Oldest wait", "number"),
          heading("Why", "wide"),
          make("td", {}),
        ),
      ),
    );
    // One body for each flow: its row, and the explanation below.
    this.rows = new Rows(this.table, (flow) => flow.key, () => new Flow());
    this.node = make("div", { class: "block" }, this.table);
    this.head = this.table.querySelector("thead");
  }

  update(pool) {
    const there = new Set(pool.flows.map((flow) => flow.key));
    const kept = [...this.rows.views.values()].filter((view) => view.open && !there.has(view.flow.key));
    this.rows.update([...pool.flows, ...kept.map((view) => ({ ...view.flow, gone: true }))]);
    const total = pool.flow_count;
    const who = pool.would_be ? "Who would wait and why" : "Who waits and why";
    let words = pool.would_be ? "Nothing would wait." : "Nothing waits.";
    const shown = count(pool.flows.length);
    if (total > pool.flows.length) words = `${who}: the ${shown} longest of ${count(total)} flows`;
    else if (total) words = `${who} (${plural(total, "flow", "flows")})`;
    say(this.caption, words);
    set(this.caption, { class: total ? null : "nothing" });
    this.head.hidden = !this.rows.views.size;
  }
}

class Flow {
  constructor() {
    this.open = false;
    opened += 1;
    const id = `flow-${opened}`;
    this.tenant = make("bdi");
    const cell = (label) => make("td", { class: "number figure", "data-label": label });
    this.cls = make("td", { "data-label": "Class" });
    this.held = cell("Held");
    this.inFlight = cell("In flight");
    this.wait = cell("Oldest wait");
    this.why = new Why();
    this.button = make("button", { type: "button", "aria-expanded": "false", "aria-controls": id }, "Explain");
    this.button.addEventListener("click", () => this.toggle());
    this.told = make("div", { class: "told", tabindex: "-1" });
    this.detail = make("tr", { class: "detail", id }, make("td", { colspan: "7" }, this.told));
    this.detail.hidden = true;
    this.node = make(
      "tbody",
      {},
      make(
        "tr",
        {},
        make("th", { scope: "row", role: "rowheader", class: "name" }, this.tenant),
        this.cls,
        this.held,
        this.inFlight,
        this.wait,
        make("td", { class: "holds" }, this.why.node),
        make("td", { class: "action" }, this.button),
      ),
      this.detail,
    );
  }

  update(flow) {
    this.flow = flow;
    say(this.tenant, flow.tenant);
    set(this.button, { "aria-label": `Explain ${flow.tenant}, ${flow.cls}` });
    say(this.cls, flow.cls);
    say(this.held, flow.gone ? count(null) : count(flow.held));
    say(this.inFlight, flow.gone ? count(null) : count(flow.in_flight));
    say(this.wait, flow.gone ? seconds(null) : seconds(flow.oldest_wait_s));
    if (flow.gone) this.why.update("", "It is not among those that wait for longest any more.");
    else this.why.update(flow.hold, flow.sentence, "", flow.own);
    if (this.open && !flow.gone && performance.now() - this.askedAt > AGAIN_MS) this.ask();
  }

  toggle() {
    this.open = !this.open;
    set(this.button, { "aria-expanded": this.open });
    this.detail.hidden = !this.open;
    if (this.open) this.ask();
  }

  async ask() {
    this.askedAt = performance.now();
    try {
      const answer = await fetch(`explain?id=${encodeURIComponent(this.flow.id)}`);
      const told = await answer.json();
      const gone = () => [make("p", {}, `Its next request has gone on: ${told.error}.`)];
      this.told.replaceChildren(...(answer.ok ? explained(told, this.flow) : gone()));
    } catch {
      this.told.replaceChildren(make("p", { class: "error" }, "Fairlane does not answer."));
    }
  }
}

function explained(told, flow) {
  const held = told.state === "queued";
  const likely = told.estimated_wait_s === null ? "not known" : `${seconds(told.estimated_wait_s)} more`;
  const turn = `number ${count(told.flow_position + 1)} of ${count(told.flows)}`;
  const fact = (name, value) =>
    make("div", {}, make("dt", {}, name), make("dd", { class: "figure" }, make("bdi", {}, value)));
  const facts = [
    ["Request", told.id],
    ["State", told.observed ? `${told.state}, observed only` : told.state],
    ["Waited", seconds(told.waited_s)],
    ["Likely to wait", held ? likely : null],
    ["Times out in", held ? seconds(told.timeout_in_s) : null],
    ["Ahead in its flow", held ? plural(told.ahead_in_flow, "request", "requests") : null],
    ["Its flow's turn", held && told.flows ? turn : null],
    ["Cost, estimated", count(told.cost)],
    ["Weight of its tenant", amount(flow.weight)],
    ["Priority for the engine", told.priority === null ? null : count(told.priority)],
    ["Endpoint", told.endpoint || null],
    ["Adapter", told.adapter || null],
  ];
  return [
    make("p", { class: "sentence", dir: "auto" }, full(told.sentence)),
    make("p", { dir: "auto" }, held ? `Goes on when ${told.next}.` : `Next: ${told.next}.`),
    make("dl", {}, ...facts.filter(([, value]) => value !== null).map(([name, value]) => fact(name, value))),
  ];
}
