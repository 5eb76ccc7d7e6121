// The frame: which models there are, and which of them is shown.

import {get, setKey} from "./api.js";
import {chat, completion} from "./chat.js";
import {el} from "./dom.js";
import * as images from "./images.js";
import {live} from "./live.js";
import {pages} from "./pages.js";
import {does} from "./panel.js";
import * as texts from "./texts.js";

const PANELS = {
  "text-generation": model => model.chat ? chat(model) : completion(model),
  "text2text-generation": completion,
  embeddings: texts.embeddings,
  "sequence-classification": texts.labels,
  "token-classification": texts.entities,
  "question-answering": texts.answers,
  reranking: texts.reranking,
  "image-classification": images.classes,
  "image-embeddings": images.vectors,
  "text-detection": images.regions,
  "text-recognition": images.readLines,
  tensors: async model => texts.tensors(model, {metadata: await get(`v2/models/${encodeURI(model.id)}`)}),
};

const find = id => document.getElementById(id);
const nav = find("models"), main = find("main"), health = find("health");
const made = new Map();
let entries = [], shown = null, figures = null;

function entriesOf({models, pages: reader}) {
  const known = models.filter(model => PANELS[model.task]);
  const detector = models.find(model => model.task === "text-detection"), recogniser = models.find(model => model.task === "text-recognition");
  const listed = known.map(model => ({key: `model/${model.id}`, name: model.id, about: does(model), make: () => PANELS[model.task](model)}));
  if (reader) listed.push({key: "pages", name: "Read pages", about: "text, places, Markdown", make: () => pages({reader}), own: true});
  else if (detector && recogniser)
    listed.push({key: "pages", name: "Read pages", about: "text and its places", make: () => pages({detector, recogniser}), own: true});
  listed.push({key: "live", name: "Live", about: "queue, latency, tokens", make: () => (figures ??= live()), own: true});
  return listed;
}

function links() {
  const link = entry => el("a", {href: `#${encodeURI(entry.key)}`, "data-key": entry.key, class: entry.own ? "own" : ""},
    el("span", {class: "name"}, entry.name), el("span", {class: "about"}, entry.about));
  const group = (title, some) => some.length ? [el("h2", {}, title), el("ul", {}, some.map(entry => el("li", {}, link(entry))))] : [];
  nav.replaceChildren(...group("Models", entries.filter(entry => !entry.own)), ...group("Server", entries.filter(entry => entry.own)));
}

async function show() {
  const wanted = decodeURI(location.hash.slice(1));
  const entry = entries.find(one => one.key === wanted) ?? entries[0];
  if (!entry || entry.key === shown) return;
  made.get(shown)?.leave?.();
  shown = entry.key;
  for (const link of nav.querySelectorAll("a"))
    if (link.dataset.key === entry.key) link.setAttribute("aria-current", "page"); else link.removeAttribute("aria-current");
  document.title = `${entry.name} – alula`;
  if (!made.has(entry.key)) {
    try { made.set(entry.key, await entry.make()); }
    catch (error) { main.replaceChildren(el("p", {class: "told bad", role: "alert"}, error.message)); shown = null; return; }
  }
  if (shown === entry.key) { main.replaceChildren(made.get(entry.key)); main.dataset.key = entry.key; window.scrollTo(0, 0); }
}

async function load() {
  try {
    const info = await get("info");
    entries = entriesOf(info);
    figures ??= live();  // it collects from now on
    links();
    await show();
    return true;
  } catch (error) {
    nav.replaceChildren();
    main.replaceChildren(el("div", {class: "card"}, el("h1", {}, error.status === 401 ? "A key is needed" : "The server does not answer"),
      el("p", {role: "alert"}, error.message), error.status === 401 ? el("p", {class: "dim"}, "Put it into the field above.") : null));
    return false;
  }
}

let loaded = false;
async function pulse() {
  if (document.hidden) return;
  try {
    // Not through get: a server that is not ready says why, with 503.
    const response = await fetch("health/ready", {cache: "no-store"}), said = await response.json();
    const degraded = Object.entries(said.degraded ?? {}).map(([name, reason]) => `${name}: ${reason}`);
    health.textContent = (said.status ?? (response.ok ? "ready" : "not ready")) + (degraded.length ? ", degraded" : "");
    health.className = `health ${!response.ok ? "bad" : degraded.length ? "warn" : "good"}`;
    health.title = [said.engine?.reason, ...degraded].filter(Boolean).join("; ");
    if (response.ok && !loaded) loaded = await load();
  } catch { health.textContent = "no answer"; health.className = "health bad"; }
}

function themed() {
  const root = document.documentElement, button = find("theme");
  const dark = () => root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  const name = () => { button.textContent = dark() ? "Light" : "Dark"; };
  button.addEventListener("click", () => { root.dataset.theme = dark() ? "light" : "dark"; name(); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", name);
  name();
}

find("key-form").addEventListener("submit", event => event.preventDefault());
find("key").addEventListener("change", async event => {
  setKey(event.target.value);
  made.clear(); shown = null;
  loaded = await load();
});
document.addEventListener("paste", event => made.get(shown)?.paste?.(event));
// A file that misses its place must not replace the page.
for (const what of ["dragover", "drop"]) window.addEventListener(what, event => event.preventDefault());
window.addEventListener("hashchange", show);
themed();
loaded = await load();
pulse();
setInterval(pulse, 5000);
