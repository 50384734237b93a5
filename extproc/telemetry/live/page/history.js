// The last minutes of a pool: points with their times, and one row of values for each line of the charts.

export const SPAN_S = 900;

export class History {
  constructor() {
    this.stepS = 5;
    this.times = [];
    this.rows = new Map(); // "held/interactive" -> values; null where there was none
  }

  // Takes in what is newer than what it has.
  merge(stepS, data) {
    this.stepS = stepS;
    const given = flat(data);
    const last = this.times.at(-1) ?? -Infinity;
    for (const name of given.keys()) {
      if (!this.rows.has(name)) this.rows.set(name, new Array(this.times.length).fill(null));
    }
    data.t.forEach((time, at) => {
      if (time <= last) return;
      this.times.push(time);
      for (const [name, values] of this.rows) values.push(given.get(name)?.[at] ?? null);
    });
  }

  forgetBefore(time) {
    let gone = 0;
    while (gone < this.times.length && this.times[gone] < time) gone += 1;
    if (!gone) return;
    this.times.splice(0, gone);
    for (const values of this.rows.values()) values.splice(0, gone);
  }

  row(name) {
    return this.rows.get(name) ?? [];
  }
}

function flat(data) {
  const found = new Map();
  for (const [name, values] of Object.entries(data)) {
    if (name === "t") continue;
    if (Array.isArray(values)) found.set(name, values);
    else for (const [part, each] of Object.entries(values)) found.set(`${name}/${part}`, each);
  }
  return found;
}
