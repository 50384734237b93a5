// One pool: how it does in a line, its last minutes, and its tables.

import { Chart } from "./chart.js";
import { Classes } from "./classes.js";
import { Endpoints } from "./endpoints.js";
import { amount, count, plural, seconds } from "./figures.js";
import { History, SPAN_S } from "./history.js";
import { make, Rows, say, set } from "./nodes.js";
import { Waiting } from "./waiting.js";

const STALLED_S = 30;
const TONES = 6;
let sections = 0;

export class Pool {
  constructor(name) {
    sections += 1;
    const id = `pool-${sections}`;
    this.history = new History();
    this.tones = new Map();
    this.endpoints = new Endpoints(name);
    this.classes = new Classes();
    this.waiting = new Waiting();
    this.charts = {
      held: new Chart("Held", count, { stacked: true }),
      slots: new Chart("In flight", amount, { filled: true }),
      released: new Chart("Released/s", amount, { stacked: true }),
      wait: new Chart("Wait, 95\u00a0%", seconds),
    };
    this.models = make("span", { class: "models quiet", dir: "auto" });
    this.summary = make("p", { class: "summary figure" });
    const tags = make("ul", { class: "tags", "aria-label": "What is to be known of it" });
    this.tags = new Rows(tags, (tag) => tag.words, () => {
      const node = make("li", { class: "tag" });
      return {
        node,
        update: (tag) => {
          say(node, tag.words);
          set(node, { class: `tag ${tag.tone}` });
        },
      };
    });
    this.tagList = tags;
    this.node = make(
      "section",
      { class: "pool", "aria-labelledby": id },
      make("div", { class: "pool-head" }, make("h2", { id }, make("bdi", {}, name)), this.models, this.summary, tags),
      make("div", { class: "charts" }, ...Object.values(this.charts).map((chart) => chart.node)),
      make("div", { class: "tables" }, this.endpoints.node, this.classes.node, this.waiting.node),
    );
  }

  update(pool, now) {
    pool.classes.forEach((cls) => {
      if (!this.tones.has(cls.name)) this.tones.set(cls.name, `tone-${this.tones.size % TONES}`);
    });
    const models = pool.models.join(", ") + (pool.models_left_out ? ` and ${count(pool.models_left_out)} more` : "");
    say(this.models, models === "*" ? "all models" : models);
    const facts = [
      `${count(pool.held)} ${pool.would_be ? "would be held" : "held"}`,
      `${count(pool.in_flight)} of ${amount(pool.limit)} slots ${pool.would_be ? "would be " : ""}in flight`,
      `${amount(pool.released_per_s)} ${pool.would_be ? "would be " : ""}released/s (30 s average)`,
    ];
    if (pool.observed) facts.push(`${count(pool.observed)} observed`);
    say(this.summary, facts.join(" · "));
    const tags = tagsOf(pool);
    this.tags.update(tags);
    this.tagList.hidden = !tags.length;
    this.endpoints.update(pool);
    this.classes.update(pool, this.tones);
    this.waiting.update(pool);
    this.drawCharts(pool, now);
  }

  drawCharts(pool, now) {
    this.history.forgetBefore(now - SPAN_S);
    const { times, stepS } = this.history;
    const lines = (row, figure) =>
      pool.classes.map((cls) => ({
        name: cls.name,
        label: cls.name,
        tone: this.tones.get(cls.name),
        values: this.history.row(`${row}/${cls.name}`),
        now: figure(cls),
      }));
    // Of the chart's last step: what the tables say is the average of a longer time.
    const latest = (row) => (cls) => this.history.row(`${row}/${cls.name}`).at(-1) ?? null;
    this.charts.held.update(lines("held", (cls) => cls.held), times, stepS, now);
    const released = lines("released_per_s", latest("released_per_s"));
    const refused = this.history.row("refused_per_s");
    if (refused.some(Boolean)) {
      const [label, tone] = ["refused", "tone-bad"];
      released.push({ name: "/refused", label, tone, values: refused, now: refused.at(-1), dashed: true });
    }
    this.charts.released.update(released, times, stepS, now);
    this.charts.wait.update(lines("wait_p95_s", latest("wait_p95_s")), times, stepS, now);
    const limits = this.history.row("limit");
    const slots = [
      { name: "ours", label: "in flight", tone: "tone-0", values: this.history.row("in_flight"), now: pool.in_flight },
      { name: "limit", label: "limit", tone: "tone-limit", values: limits, now: pool.limit, dashed: true },
    ];
    this.charts.slots.update(slots, times, stepS, now);
  }
}

// What an operator should see first.
function tagsOf(pool) {
  const tags = [];
  const add = (tone, words) => tags.push({ tone, words });
  const { down = 0, stalled = 0, outage = 0, stale = 0, starting = 0 } = pool.stances;
  const of = (number, words) => `${count(number)} of ${plural(pool.endpoint_count, "endpoint", "endpoints")} ${words}`;
  if (pool.traffic === "paused") add("bad", "paused: nothing is released");
  if (pool.traffic === "draining") add("warn", "draining: nothing more is taken in");
  if (pool.mode === "observe") add("warn", "observes only: requests pass as they come");
  if (pool.would_be) add("", "all figures are what would be if requests waited");
  if (pool.mode === "off") add("warn", "off: requests pass");
  const part = `for ${amount(pool.percentage)} % of ${pool.percentage_of}`;
  if (pool.mode === "enforce" && pool.percentage < 100) add("warn", part);
  if (pool.retiring) add("warn", "retiring: no longer configured");
  if (down) add("bad", of(down, "down"));
  if (stalled) add("bad", of(stalled, "stalled"));
  if (outage) add("bad", of(outage, "without a page (outage)"));
  if (stale) add("warn", of(stale, "stale"));
  if (starting) add("", of(starting, "starting"));
  if (pool.since_release_s > STALLED_S) add("bad", `nothing released for ${seconds(pool.since_release_s)}`);
  if (pool.leaked) add("bad", `${plural(pool.leaked, "slot", "slots")} leaked`);
  if (pool.source_error) add("bad", `endpoints cannot be read: ${pool.source_error}`);
  return tags;
}
