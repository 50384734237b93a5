// The page: takes the figures in, and shows them while they are fresh. Figures that are not say so.

import { Connection } from "./connection.js";
import { count, seconds, timeOfDay } from "./figures.js";
import { make, Rows, say, set } from "./nodes.js";
import { Pool } from "./pool.js";

const find = (id) => document.getElementById(id);

const pools = new Map(); // name -> Pool
const histories = new Map(); // of pools that no snapshot has shown yet
let newest = null; // the last snapshot that came
let shown = null; // the one that the page shows
let state = "opening";
let paused = false;
let version = null; // of the service that this page came from

const sections = new Rows(find("pools"), (pool) => pool.name, (first) => {
  const pool = new Pool(first.name);
  pools.set(first.name, pool);
  (histories.get(first.name) ?? []).forEach((each) => pool.history.merge(each.step_s, each.data));
  histories.delete(first.name);
  return { node: pool.node, update: (told) => pool.update(told, shown.time) };
});

const facts = new Rows(find("facts"), (fact) => fact.name, (first) => {
  const value = make("dd", { class: "figure" });
  return {
    node: make("div", {}, make("dt", {}, first.name), value),
    update: (fact) => {
      say(value, fact.value);
      set(value, { class: `figure ${fact.tone ?? ""}` });
    },
  };
});

function show() {
  if (newest === null || paused) return;
  version ??= newest.version;
  if (newest.version !== version && reload(newest.version)) return;
  shown = newest;
  find("empty")?.remove();
  say(find("version"), shown.version);
  const revision = count(shown.revision);
  facts.update([
    stateOf(shown),
    ...(shown.cluster ? [replicasOf(shown.cluster)] : []),
    { name: "Held", value: count(shown.held) },
    { name: "In flight", value: count(shown.in_flight) },
    shown.file_error
      ? { name: "Revision", value: `${revision}, the file cannot be used: ${shown.file_error}`, tone: "bad" }
      : { name: "Revision", value: revision },
    { name: "Up", value: seconds(shown.uptime_s) },
  ]);
  const names = new Set(shown.pools.map((pool) => pool.name));
  for (const name of pools.keys()) if (!names.has(name)) pools.delete(name);
  sections.update(shown.pools);
  document.title = shown.held ? `${count(shown.held)} held – Fairlane` : "Fairlane";
}

function stateOf({ serving, cluster }) {
  if (!serving) return { name: "State", value: "draining", tone: "warn" };
  if (!cluster || cluster.active) return { name: "State", value: "serving", tone: "good" };
  const active = cluster.active_replica ? `${cluster.active_replica} is active` : "nobody is active";
  return { name: "State", value: `stands by, ${active}`, tone: "warn" };
}

function replicasOf({ mode, replica, replicas, expected, store_used, store_lost_s, error }) {
  const own = `${replica} (${mode})`;
  if (!store_used) return { name: "Replica", value: own };
  if (store_lost_s !== null) {
    return { name: "Replica", value: `${own}, the store is lost for ${seconds(store_lost_s)}: ${error}`, tone: "bad" };
  }
  return { name: "Replica", value: `${own}, ${count(replicas)} of ${count(expected)}` };
}

// The page of the service's new version. Once for each: behind one address there may be two that answer in turn.
function reload(to) {
  const key = `fairlane.reloaded ${to}`;
  try {
    if (sessionStorage.getItem(key) !== null) return false;
    sessionStorage.setItem(key, "yes");
  } catch {
    return false; // a browser that keeps nothing
  }
  location.reload();
  return true;
}

function freshness() {
  const old = shown !== null && state !== "live";
  document.body.classList.toggle("old", old);
  document.body.classList.toggle("paused", paused && !old);
  say(find("clock-words"), shown === null ? "No figures yet" : old ? "Old: as of" : paused ? "Paused at" : "As of");
  say(find("clock"), shown === null ? "" : timeOfDay(shown.time));
}

// A polite region: what it says is read out, so it changes only when the state does.
function announce(words) {
  const since = newest === null ? "." : ` since ${timeOfDay(newest.time)}. The figures are those of then.`;
  const texts = {
    lost: `No connection to Fairlane${since}${words ? ` ${words}` : ""} The page tries again by itself.`,
    silent: `Fairlane is silent${since}`,
    broken: `What Fairlane tells cannot be read by this page${since} Load the page again.`,
  };
  say(find("connection"), texts[state] ?? "");
}

new Connection("events", {
  history(data) {
    for (const [name, series] of Object.entries(data.pools)) {
      const pool = pools.get(name);
      if (pool) pool.history.merge(data.step_s, series);
      else histories.set(name, [...(histories.get(name) ?? []), { step_s: data.step_s, data: series }].slice(-2));
    }
  },
  snapshot(data) {
    const before = [newest, shown];
    try {
      newest = data;
      show();
    } catch (error) {
      [newest, shown] = before;
      throw error;
    }
    freshness();
  },
  state(name, words) {
    if (name === state && name !== "lost") return;
    state = name;
    announce(words);
    freshness();
  },
});

find("pause").addEventListener("click", () => {
  paused = !paused;
  set(find("pause"), { "aria-pressed": paused });
  say(find("pause"), paused ? "Go on" : "Pause");
  show();
  freshness();
});

// -- dark and light -----------------------------------------------------------------------------------

const KEY = "fairlane.scheme";
const system = matchMedia("(prefers-color-scheme: dark)");

function scheme() {
  return document.documentElement.dataset.scheme ?? (system.matches ? "dark" : "light");
}

function nameScheme() {
  say(find("scheme"), scheme() === "dark" ? "Light" : "Dark");
}

function remembered() {
  try {
    return localStorage.getItem(KEY);
  } catch {
    return null; // a browser that keeps nothing
  }
}

find("scheme").addEventListener("click", () => {
  document.documentElement.dataset.scheme = scheme() === "dark" ? "light" : "dark";
  nameScheme();
  try {
    localStorage.setItem(KEY, scheme());
  } catch {
    // it is for this page only, then
  }
});
system.addEventListener("change", nameScheme);
const kept = remembered();
if (kept === "dark" || kept === "light") document.documentElement.dataset.scheme = kept;
nameScheme();
