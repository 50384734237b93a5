// The stream of figures: server-sent events. One that breaks is opened again, later each time; one that says nothing
// for a while is taken for broken. A page that nobody looks at has none. What has come is live when it is shown, and not
// before: a service of another version may tell what this page cannot read.

const SILENT_MS = 4000;
const BROKEN_MS = 15000;
const WAITS_MS = [1000, 2000, 4000, 8000, 15000];

export class Connection {
  // `told`: {history(data), snapshot(data), state(name, words)}; states: "opening", "live", "silent", "lost", "broken".
  // The first two throw at what they cannot read.
  constructor(url, told) {
    Object.assign(this, { url, told, source: null, timer: null, attempts: 0, heardAt: 0, reason: "", faulty: false });
    setInterval(() => this.listen(), 1000);
    document.addEventListener("visibilitychange", () => {
      if (!document.hidden) return this.open();
      this.close();
      this.told.state("opening", ""); // what is shown when it is looked at again is old, until there is more
    });
    this.open();
  }

  open() {
    if (document.hidden) return;
    this.close();
    this.heardAt = performance.now();
    this.faulty = false;
    this.source = new EventSource(this.url);
    this.source.addEventListener("history", (event) => {
      // Once in a stream is enough: the charts lack a part from then on.
      if (!this.take("history", event)) this.faulty = true;
    });
    this.source.addEventListener("snapshot", (event) => {
      this.heardAt = performance.now();
      this.attempts = 0;
      const taken = this.take("snapshot", event);
      this.told.state(taken && !this.faulty ? "live" : "broken", "");
    });
    this.source.addEventListener("error", () => this.lost());
  }

  // Whether it could be read.
  take(name, event) {
    try {
      this.told[name](JSON.parse(event.data));
      return true;
    } catch (error) {
      console.error(error);
      return false;
    }
  }

  close() {
    clearTimeout(this.timer);
    this.source?.close();
    this.source = null;
  }

  async lost() {
    this.close();
    const wait = WAITS_MS[Math.min(this.attempts, WAITS_MS.length - 1)];
    const attempt = (this.attempts += 1);
    this.timer = setTimeout(() => this.open(), wait * (0.75 + Math.random() / 2));
    this.told.state("lost", this.reason);
    this.reason = await refusal(this.url);
    if (this.attempts === attempt) this.told.state("lost", this.reason);
  }

  listen() {
    if (!this.source) return;
    const silence = performance.now() - this.heardAt;
    if (silence > BROKEN_MS) this.lost();
    else if (silence > SILENT_MS && !this.attempts) this.told.state("silent", "");
  }
}

// An EventSource does not say why it was refused.
async function refusal(url) {
  try {
    const answer = await fetch(url, { method: "HEAD", signal: AbortSignal.timeout(5000) });
    if (answer.status === 503) return "Fairlane has as many live pages open as it may, or is about to stop.";
    return answer.ok ? "" : `Fairlane answers with status ${answer.status}.`;
  } catch {
    return "";
  }
}
