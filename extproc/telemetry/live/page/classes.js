// The classes of a pool: what is held, for how long against what was promised, and what holds it.

import { amount, count, index, plural, seconds } from "./figures.js";
import { heading, make, Rows, say, set } from "./nodes.js";

const HOLDS = {
  paused: ["Pool paused", "bad"],
  flow: ["Earlier requests", ""],
  order: ["Others are due", ""],
  tenant_cap: ["Tenant's limit", ""],
  rate: ["Tenant's rate", ""],
  class_cap: ["Class's limit", ""],
  headroom: ["Headroom", ""],
  higher_class: ["Higher class", ""],
  higher_class_elsewhere: ["Higher class elsewhere", ""],
  gate: ["Gate closed", "warn"],
  window: ["No room", ""],
  no_endpoint: ["No endpoint", "bad"],
};

// As a sentence stands: with a capital, and a stop.
export function full(text) {
  return `${text.charAt(0).toUpperCase()}${text.slice(1)}${/[.…]$/.test(text) ? "" : "."}`;
}

// What holds a request: in a word, and in a sentence.
export class Why {
  constructor() {
    this.tag = make("span", { class: "tag" });
    this.sentence = make("span", { dir: "auto" });
    this.then = make("span", { class: "quiet", dir: "auto" });
    this.words = make("p", { class: "why" }, this.tag, " ", this.sentence, " ", this.then);
    this.node = make("div", {}, this.words);
  }

  // Sentences that name all endpoints are long: they are cut until somebody wants all of it.
  addMore() {
    this.more = make("button", { type: "button", class: "plain", "aria-expanded": "false" }, "More");
    this.more.addEventListener("click", () => {
      const open = this.words.classList.toggle("whole");
      set(this.more, { "aria-expanded": open });
      say(this.more, open ? "Less" : "More");
    });
    this.node.append(this.more);
  }

  update(hold, sentence, then = "", own = true) {
    const [word, tone] = HOLDS[hold] ?? [hold, ""];
    say(this.tag, word);
    set(this.tag, { class: `tag ${tone}` });
    this.tag.hidden = !hold;
    say(this.sentence, sentence ? (own ? full(sentence) : `Its class: ${full(sentence)}`) : "");
    say(this.then, then ? `Goes on when ${then}.` : "");
    if (!this.more) return;
    const { scrollHeight, clientHeight } = this.words;
    this.more.hidden = !this.words.matches(".whole") && scrollHeight <= clientHeight + 1;
  }
}

export class Classes {
  constructor() {
    const body = make("tbody");
    this.caption = make("caption");
    this.rows = new Rows(body, (cls) => cls.name, () => new Row());
    this.node = make(
      "div",
      { class: "block" },
      make(
        "table",
        { class: "classes" },
        this.caption,
        make(
          "thead",
          {},
          make(
            "tr",
            {},
            heading("Class"),
            heading("Held", "number"),
            heading("In flight", "number"),
            heading("Oldest wait", "number"),
            heading("Released", "number", "Released a second, average of 30 s"),
            heading("Fairness", "number"),
            heading("What holds it", "wide"),
          ),
        ),
        body,
      ),
    );
  }

  update(pool, tones) {
    say(this.caption, pool.would_be ? "Classes, as they would be: nothing is held" : "Classes");
    const { would_be } = pool;
    this.rows.update(pool.classes.map((cls) => ({ ...cls, would_be, tone: tones.get(cls.name) })));
  }
}

class Row {
  constructor() {
    this.dot = make("span", { "aria-hidden": "true" });
    this.name = make("bdi");
    this.rank = make("span", { class: "quiet" });
    const cell = (label) => make("td", { class: "number figure", "data-label": label });
    this.held = cell("Held");
    this.inFlight = cell("In flight");
    this.wait = make("span");
    this.objective = make("span", { class: "quiet" });
    this.waitCell = cell("Oldest wait");
    this.waitCell.append(this.wait, " ", this.objective);
    this.released = cell("Released");
    this.fairness = cell("Fairness");
    this.why = new Why();
    this.why.addMore();
    this.gates = make("p", { class: "quiet" });
    this.node = make(
      "tr",
      {},
      make("th", { scope: "row", role: "rowheader" }, this.dot, " ", this.name, " ", this.rank),
      this.held,
      this.inFlight,
      this.waitCell,
      this.released,
      this.fairness,
      make("td", { class: "holds" }, this.why.node, this.gates),
    );
  }

  update(cls) {
    set(this.dot, { class: `dot ${cls.tone}` });
    say(this.name, cls.name);
    set(this.why.more, { "aria-label": `What holds ${cls.name}, in whole` });
    say(this.rank, cls.retiring ? `rank ${cls.rank}, retiring` : `rank ${cls.rank}`);
    say(this.held, count(cls.held));
    say(this.inFlight, count(cls.in_flight));
    const over = cls.objective_s !== null && cls.oldest_wait_s > cls.objective_s;
    say(this.wait, seconds(cls.oldest_wait_s));
    say(this.objective, cls.objective_s === null ? "" : `${over ? "over" : "of"} ${seconds(cls.objective_s)}`);
    set(this.waitCell, { class: `number figure ${over ? "bad" : ""}` });
    say(this.released, `${amount(cls.released_per_s)}/s`);
    const tenants = cls.jain === null ? "" : ` · ${plural(cls.competing, "tenant", "tenants")}`;
    say(this.fairness, index(cls.jain) + tenants);
    set(this.fairness, { title: "Jain's index of the last minute: 1 where all tenants that compete got the same" });
    this.why.update(cls.hold, cls.held ? cls.sentence : cls.would_be ? "Nothing would wait." : "Nothing waits.", cls.next);
    const closed = cls.gates.filter((gate) => gate.closed);
    const places = (gate) => plural(gate.closed, "endpoint", "endpoints");
    say(this.gates, closed.map((gate) => `Gate ${gate.name} is closed at ${places(gate)}.`).join(" "));
    this.gates.hidden = !closed.length;
  }
}
