// What the server does now, from its own figures for Prometheus.

import {get} from "./api.js";
import {chart, figure} from "./charts.js";
import {el} from "./dom.js";

const EVERY_S = 2;

const REQUESTS = "alula_requests_total";
const SECONDS = "alula_request_duration_seconds_bucket";
const QUEUED = "alula_queue_duration_seconds_bucket";
const ROWS_WAITING = "alula_queue_size";
const ACTIVE = "alula_requests_active";
const WRITING = "alula_answers_running";
const WRITING_WAITS = "alula_answers_waiting";
const READ = ["alula_tokens_total", "alula_prompt_tokens_total"];
const WRITTEN = "alula_generation_tokens_total";
const BATCHES = "alula_batch_size_count";
const ROWS = "alula_batch_size_sum";
const MEMORY = "process_resident_memory_bytes";
const RESTARTS = "alula_engine_restarts_total";

// Routes whose requests are work, not looks at the server.
const WORK = /^\/(v1\/(chat|completions|embeddings)|embed|predict|rerank|tokenize|ocr|v2\/.*infer)/;

// Text for Prometheus to samples by name: {labels, value}.
export function parsed(text) {
  const found = new Map();
  for (const line of text.split("\n")) {
    const [, name, given, value] = line.match(/^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)/) ?? [];
    if (!name) continue;
    const labels = {};
    for (const [, key, said] of (given ?? "").matchAll(/(\w+)="((?:[^"\\]|\\.)*)"/g)) labels[key] = said;
    if (!found.has(name)) found.set(name, []);
    found.get(name).push({labels, value: Number(value)});
  }
  return found;
}

const sum = (samples, name, test = () => true) =>
  (samples.get(name) ?? []).filter(one => test(one.labels)).reduce((all, one) => all + one.value, 0);

function buckets(samples, name, test) {
  const made = new Map();
  for (const {labels, value} of samples.get(name) ?? [])
    if (test(labels)) { const at = labels.le === "+Inf" ? Infinity : Number(labels.le); made.set(at, (made.get(at) ?? 0) + value); }
  return made;
}

// The quantile of what came between two looks, straight within a bucket; null where nothing came.
export function quantile(before, after, share) {
  const edges = [...after.keys()].sort((a, b) => a - b), counts = edges.map(edge => after.get(edge) - (before.get(edge) ?? 0));
  const all = counts.at(-1) ?? 0;
  if (!(all > 0)) return null;
  const at = counts.findIndex(count => count >= share * all), low = at ? edges[at - 1] : 0, under = at ? counts[at - 1] : 0;
  if (edges[at] === Infinity) return low;
  return low + (edges[at] - low) * (share * all - under) / (counts[at] - under || 1);
}

const worked = labels => WORK.test(labels.route);
const every = () => true;

export function live() {
  const charts = {
    rate: chart({title: "Requests", about: "answered in a second", series: ["answered", "refused", "failed"], every: EVERY_S}),
    latency: chart({title: "Latency", about: "from a request's head to the end of its answer, in ms", series: ["half within", "95 of 100 within"], unit: " ms", every: EVERY_S}),
    queue: chart({title: "Queue", about: "rows and answers that wait, and requests under way", series: ["wait", "under way", "answers written"], every: EVERY_S}),
    wait: chart({title: "Time in the queue", about: "from a row's admission to its batch, in ms", series: ["half within", "95 of 100 within"], unit: " ms", every: EVERY_S}),
    tokens: chart({title: "Tokens", about: "in a second", series: ["read", "written"], every: EVERY_S}),
    batch: chart({title: "Batches", about: "rows in one, on average", series: ["rows"], every: EVERY_S}),
  };
  const tiles = ["Requests so far", "Tokens so far", "Memory of the front", "Engine restarts"].map(name => ({name, value: el("b", {}, "–")}));
  const told = el("p", {class: "told dim", role: "status"}, "Collecting …");
  const node = el("div", {}, el("header", {class: "heading"}, el("h1", {}, "Live"),
    el("p", {class: "lead"}, `What the server does now, looked at every ${EVERY_S} seconds while this page is seen. Looks at the server itself do not count as requests.`)),
    el("div", {class: "tiles"}, tiles.map(tile => el("div", {class: "card tile"}, el("span", {class: "dim"}, tile.name), tile.value))),
    told, el("div", {class: "charts"}, Object.values(charts).map(one => one.node)));
  let last = null, looking = false;

  async function look() {
    if (looking || document.hidden) return;
    looking = true;
    try { seen(parsed(await get("metrics")), performance.now() / 1000); told.textContent = ""; told.className = "told"; }
    catch (error) { told.textContent = error.message; told.className = "told bad"; last = null; }
    finally { looking = false; }
  }

  function seen(samples, now) {
    const read = READ.reduce((all, name) => all + sum(samples, name), 0), written = sum(samples, WRITTEN);
    [figure(sum(samples, REQUESTS, worked)), figure(read + written), `${figure(sum(samples, MEMORY) / 1e6)} MB`, figure(sum(samples, RESTARTS))]
      .forEach((text, at) => { tiles[at].value.textContent = text; });
    if (last) {
      const seconds = now - last.now, rate = (name, test) => Math.max(0, sum(samples, name, test) - sum(last.samples, name, test)) / seconds;
      const kind = first => labels => worked(labels) && labels.status[0] === first;
      const within = (name, share, test) => {
        const value = quantile(buckets(last.samples, name, test), buckets(samples, name, test), share);
        return value === null ? null : 1000 * value;
      };
      charts.rate.push([rate(REQUESTS, kind("2")), rate(REQUESTS, kind("4")), rate(REQUESTS, kind("5"))]);
      charts.latency.push([within(SECONDS, 0.5, worked), within(SECONDS, 0.95, worked)]);
      charts.queue.push([sum(samples, ROWS_WAITING) + sum(samples, WRITING_WAITS), sum(samples, ACTIVE), sum(samples, WRITING)]);
      charts.wait.push([within(QUEUED, 0.5, every), within(QUEUED, 0.95, every)]);
      charts.tokens.push([READ.reduce((all, name) => all + rate(name), 0), rate(WRITTEN)]);
      const batches = rate(BATCHES);
      charts.batch.push([batches ? rate(ROWS) / batches : null]);
    }
    last = {samples, now};
  }

  look();
  setInterval(look, 1000 * EVERY_S);
  return node;
}
