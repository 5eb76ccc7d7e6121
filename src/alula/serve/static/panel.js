// A form on the left, its answer on the right: what every model that answers in one call looks like.

import {ask, curl} from "./api.js";
import {copying, dropzone, duration, el, field} from "./dom.js";

const TASKS = {
  "text-generation": "writes text", "text2text-generation": "rewrites text", embeddings: "embeds texts",
  "sequence-classification": "labels texts", "token-classification": "finds entities",
  "question-answering": "answers questions", reranking: "ranks texts", "image-classification": "labels images",
  "image-embeddings": "embeds images", "text-detection": "finds text", "text-recognition": "reads lines",
  tensors: "arrays in, arrays out",
};

export function does(model) { return TASKS[model.task] ?? model.task; }

export function heading(model, lead) {
  const facts = [model.task, model.engine, model.precision, model.max_input_length ? `${model.max_input_length} tokens` : ""];
  return el("header", {class: "heading"},
    el("h1", {}, model.id),
    el("p", {class: "facts"}, facts.filter(Boolean).map(fact => el("span", {class: "tag"}, fact)),
      el("span", {class: model.verified ? "tag good" : "tag bad"}, model.verified ? "verified" : "not verified")),
    el("p", {class: "lead"}, lead));
}

// What an answer is shown in: how long it took, the answer, and the request and the JSON behind it.
export function outcome() {
  const told = el("p", {class: "told dim", role: "status"}, "No answer yet.");
  const shown = el("div", {class: "shown"}), behind = el("div", {class: "behind"});
  const node = el("section", {class: "card answer", "aria-label": "Answer"}, told, shown, behind);
  return {
    node, shown,
    busy(text = "Asking …") { told.className = "told dim"; told.textContent = text; node.setAttribute("aria-busy", "true"); },
    done(seconds, more = "") {
      node.removeAttribute("aria-busy");
      told.className = "told"; told.textContent = `Answered in ${duration(seconds)}${more}`;
    },
    failed(error) {
      node.removeAttribute("aria-busy");
      told.className = "told bad";
      told.textContent = error.name === "AbortError" ? "Stopped." : error.message;
    },
    told(request, json) {
      const command = curl(request), text = JSON.stringify(json, null, 1);
      const cut = text.length > 20000 ? `${text.slice(0, 20000)}\n…` : text;
      behind.replaceChildren(
        el("details", {}, el("summary", {}, "Request"), el("div", {class: "code"}, copying(() => command), el("pre", {tabIndex: 0}, command))),
        el("details", {}, el("summary", {}, "JSON"), el("div", {class: "code"}, copying(() => text), el("pre", {tabIndex: 0}, cut))));
    },
  };
}

// `fields` as dom.js has them, `request(values)` gives {path, body}, `show(answer, values)` an element.
export function panel(model, {lead, fields, request, show, button = "Ask"}) {
  const made = fields.map(field), out = outcome();
  const go = el("button", {type: "submit", class: "primary"}, button);
  const form = el("form", {class: "card", "aria-label": "Request", on: {submit: async event => {
    event.preventDefault();
    const values = Object.fromEntries(made.map(one => [one.name, one.read()]));
    await answered(out, go, request(values), answer => show(answer, values));
  }}}, made.map(one => one.node), el("div", {class: "row"}, go));
  form.addEventListener("keydown", event => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
  });
  return el("div", {}, heading(model, lead), el("div", {class: "two"}, form, out.node));
}

// The same for images: asked as soon as they are there. `show(answer, image)` for each of them.
export function imagePanel(model, {lead, label, more = [], show}) {
  const extra = more.map(field), out = outcome();
  let files = [];
  const again = el("button", {type: "submit", class: "primary", disabled: true}, "Ask again");
  async function look() {
    if (!files.length) return;
    again.disabled = false;
    const values = extra.map(one => [one.name, one.read()]).filter(([, value]) => value !== undefined);
    const request = {path: "predict", form: [["model", model.id], ...values, ...files.map(file => ["image", file])]};
    await answered(out, again, request, async answer => {
      const all = files.length > 1 ? answer : [answer];
      const shown = await Promise.all(all.map(async (one, at) => show(one, await picture(files[at]))));
      return el("div", {class: "images"}, shown);
    });
  }
  const zone = dropzone({label, accept: "image/*", multiple: true, taken: given => { files = given; look(); }});
  const form = el("form", {class: "card", "aria-label": "Request", on: {submit: event => { event.preventDefault(); look(); }}},
    zone, extra.map(one => one.node), el("div", {class: "row"}, again));
  const node = el("div", {}, heading(model, lead), el("div", {class: "two"}, form, out.node));
  node.paste = zone.paste;
  return node;
}

export async function answered(out, button, request, show) {
  out.busy();
  button.disabled = true;
  const began = performance.now();
  let instead = "";
  try {
    const answer = await ask(request, {heard: reason => { instead = ` · degraded: ${reason}`; }});
    const seconds = (performance.now() - began) / 1000;
    out.shown.replaceChildren(await show(answer));
    out.told(request, answer);
    out.done(seconds, instead);
  } catch (error) {
    out.shown.replaceChildren();
    out.failed(error);
  } finally { button.disabled = false; }
}

// An image as the browser draws it, upright; one that it cannot decode (a TIFF) has its name only.
export async function picture(file) {
  const image = el("img", {src: URL.createObjectURL(file), alt: file.name, class: "thumb"});
  try { await image.decode(); } catch { return el("p", {class: "dim"}, `${file.name}, which browsers do not show`); }
  return image;
}
