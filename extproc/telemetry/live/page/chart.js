// A small chart of the last minutes. Where nothing happened there are no points, and no line.

import { draw, make, Rows, say, set } from "./nodes.js";
import { SPAN_S } from "./history.js";

const WIDTH = 300;
const HEIGHT = 64;

// A line is {name, label, values, now, tone, dashed}: `tone` is a class of the style sheet. `stacked`: each on those
// before it, but for dashed ones.
export class Chart {
  constructor(title, write, { stacked = false, filled = false } = {}) {
    Object.assign(this, { title, write, stacked, filled });
    this.top = make("span", { class: "top-value figure" });
    this.plot = draw("svg", {
      viewBox: `0 0 ${WIDTH} ${HEIGHT}`,
      preserveAspectRatio: "none",
      role: "img",
      class: "plot",
    });
    const key = make("ul", { class: "key" });
    this.keys = new Rows(key, (line) => line.name, (line) => {
      const swatch = make("span", { class: `dot ${line.tone} ${line.dashed ? "dashed" : ""}`, "aria-hidden": "true" });
      const value = make("b", { class: "figure" });
      const node = make("li", {}, swatch, make("bdi", {}, line.label), " ", value);
      return { node, update: (each) => say(value, this.write(each.now)) };
    });
    this.node = make(
      "figure",
      { class: "chart" },
      make("figcaption", {}, make("span", { class: "chart-title" }, title), this.top),
      this.plot,
      make("p", { class: "axis", "aria-hidden": "true" }, make("span", {}, "15 min ago"), make("span", {}, "now")),
      key,
    );
  }

  update(lines, times, stepS, now) {
    const heights = this.stacked ? stack(lines) : lines.map((line) => line.values);
    const most = Math.max(0, ...heights.flat().filter((value) => value !== null));
    const top = roundUp(most);
    const x = (time) => (WIDTH * (time - now + SPAN_S)) / SPAN_S;
    const y = (value) => HEIGHT - 1 - ((HEIGHT - 3) * value) / (top || 1);
    const base = draw("line", { class: "base", x1: 0, x2: WIDTH, y1: HEIGHT - 1, y2: HEIGHT - 1 });
    const shapes = [];
    lines.forEach((line, at) => {
      const below = this.stacked && at ? heights[at - 1] : null;
      for (const run of runs(times, heights[at], 3 * stepS)) {
        const path = run.map((point) => `${x(point.time).toFixed(1)},${y(point.value).toFixed(1)}`).join(" L");
        if ((this.stacked || this.filled) && !line.dashed) {
          const back = [...run].reverse();
          const floor = back.map((point) => `${x(point.time).toFixed(1)},${y(below?.[point.at] ?? 0).toFixed(1)}`);
          shapes.push(draw("path", { class: `area ${line.tone}`, d: `M${path} L${floor.join(" L")} Z` }));
        }
        const point = run.length === 1 ? " h0.01" : ""; // which is a dot
        shapes.push(draw("path", { class: `line ${line.tone} ${line.dashed ? "dashed" : ""}`, d: `M${path}${point}` }));
      }
    });
    this.plot.replaceChildren(base, ...shapes);
    const nowWords = lines.map((line) => `${line.label} ${this.write(line.now)}`).join(", ");
    const words = `${this.title}, last 15 minutes: at most ${this.write(most)}; now ${nowWords || "none"}`;
    set(this.plot, { "aria-label": words });
    say(this.top, most ? `max ${this.write(most)}` : times.length ? "" : "no points yet");
    this.keys.update(lines);
  }
}


// Each line on top of those before it.
function stack(lines) {
  const sums = [];
  return lines.map((line) =>
    line.dashed ? line.values : line.values.map((value, at) => {
      if (value === null) return sums[at] ?? null;
      sums[at] = (sums[at] ?? 0) + value;
      return sums[at];
    }),
  );
}

// Parts without a gap, of points {time, value, at}.
function runs(times, values, longestS) {
  const found = [];
  let run = [];
  times.forEach((time, at) => {
    const value = values[at] ?? null;
    if (run.length && (value === null || time - run.at(-1).time > longestS)) {
      found.push(run);
      run = [];
    }
    if (value !== null) run.push({ time, value, at });
  });
  return run.length ? [...found, run] : found;
}

function roundUp(value) {
  if (value <= 0) return 0;
  const ten = 10 ** Math.floor(Math.log10(value));
  return [1, 1.5, 2, 3, 4, 5, 6, 8, 10].map((part) => part * ten).find((each) => each >= value);
}
