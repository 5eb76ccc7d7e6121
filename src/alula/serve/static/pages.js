// Pages of images and PDFs: the page with boxes, its text, and the page as Markdown, side by side.

import {ask, streamed} from "./api.js";
import {copying, dropzone, duration, el, field, percent} from "./dom.js";
import {boxed} from "./images.js";
import {markdown} from "./markdown.js";

const TASKS = {
  "lines and places": "spotting", "Markdown": "document", "text alone": "text", "tables": "table", "formulas": "formula",
  "charts": "chart", "fields": "fields", "a translation": "translate", "an answer": "ask",
};

// `reader` is what /info says of who reads pages; without one a `detector` and a `recogniser` read images together.
export function pages({reader, detector, recogniser}) {
  const told = el("p", {class: "told dim", role: "status"}, "Nothing read yet.");
  const all = el("div", {class: "sheets"});
  const options = reader ? readerOptions(reader.tasks) : {nodes: [], asked: () => []};
  let stop = null;
  const halt = el("button", {type: "button", disabled: true, on: {click: () => stop?.abort()}}, "Stop");
  async function read(file) {
    stop?.abort();
    const mine = stop = new AbortController();
    halt.disabled = false;
    all.replaceChildren();
    told.className = "told dim"; told.textContent = `Reading ${file.name} …`;
    const began = performance.now(), seconds = () => duration((performance.now() - began) / 1000);
    try {
      const count = reader ? await readBy(reader, file, options.asked(), all, mine.signal, text => { told.textContent = text; })
        : await readTogether(detector, recogniser, file, all, mine.signal);
      told.className = "told"; told.textContent = `${file.name}: ${count} in ${seconds()}.`;
    } catch (error) {
      told.className = error.name === "AbortError" ? "told" : "told bad";
      if (mine === stop) told.textContent = error.name === "AbortError" ? "Stopped." : error.message;
    } finally { if (mine === stop) { stop = null; halt.disabled = true; } }
  }
  const zone = dropzone({
    label: reader ? "A page, or a PDF" : "A page", accept: reader ? "image/*,application/pdf,.pdf,.tif,.tiff" : "image/*",
    taken: ([file]) => read(file)});
  const by = reader ? reader.model + (reader.with ? ` with ${reader.with.join(" and ")}` : "") : `${detector.id} and ${recogniser.id}`;
  const node = el("div", {},
    el("header", {class: "heading"}, el("h1", {}, "Read pages"),
      el("p", {class: "facts"}, el("span", {class: "tag"}, by)),
      el("p", {class: "lead"}, reader ? "Text, its places and Markdown of images and PDFs, each page as soon as it is read."
        : "Where text stands is found by one model, and each line read by the other. PDFs need a model that reads whole pages.")),
    el("form", {class: "card drop-row", "aria-label": "Request", on: {submit: event => event.preventDefault()}},
      zone, el("div", {class: "options"}, options.nodes), el("div", {class: "row"}, halt), told),
    all);
  node.paste = zone.paste;
  node.leave = () => stop?.abort();
  return node;
}

function readerOptions(able) {
  const both = able.includes("document");
  const what = field({name: "task", label: "Read", kind: "choice", value: both ? "everything" : "lines and places",
    choices: [...(both ? ["everything"] : []), ...Object.keys(TASKS).filter(name => able.includes(TASKS[name]))],
    hint: both ? "Everything is lines and places, then Markdown" : undefined});
  const said = field({name: "said", label: "Fields", placeholder: "name, date, total"});
  const which = field({name: "pages", label: "Pages", placeholder: "all, or 1-3,7"});
  const tokens = field({name: "max_tokens", label: "Tokens a page", kind: "number", min: 1, step: 1, placeholder: "4096"});
  const names = {fields: ["Fields", "fields"], translate: ["Language", "to"], ask: ["Question", "question"]};
  const show = () => {
    const named = names[TASKS[what.read()]];
    said.node.hidden = !named;
    if (named) said.node.querySelector("label").textContent = named[0];
  };
  what.input.addEventListener("change", show);
  show();
  return {
    nodes: [what.node, said.node, which.node, ...(both ? [tokens.node] : [])],
    asked() {
      const tasks = TASKS[what.read()] ? [TASKS[what.read()]] : ["spotting", "document"];
      return tasks.map(task => [["task", task], ["pages", which.read()], ["max_tokens", tokens.read() ?? ""],
        [names[task]?.[1] ?? "", said.read()]].filter(([name, value]) => name && value !== ""));
    },
  };
}

// Each task is one look at the file; what they say of a page stands together.
async function readBy(reader, file, tasks, all, signal, tell) {
  const sheets = new Map();
  for (const [place, options] of tasks.entries()) {
    const form = [["model", reader.model], ...options, ["pictures", place === 0], ["file", file]];
    const task = options[0][1];
    let picture = null;
    for await (const line of streamed({path: "ocr/pdf", form}, signal)) {
      if (line.summary) continue;
      if (line.picture) { picture = line.picture; continue; }
      const sheet = sheets.get(line.index) ?? newSheet(sheets, all, file, line.index);
      await sheet.add(task, line, picture);
      // Whoever reads lines writes no Markdown: they are set as paragraphs then.
      if (!reader.tasks.includes("document")) sheet.right.replaceChildren(...written(paragraphs(line.blocks.filter(block => block.box))));
      picture = null;
      tell(`${file.name}: page ${line.index + 1} read (${task}) …`);
    }
  }
  return sheets.size === 1 ? "one page" : `${sheets.size} pages`;
}

function newSheet(sheets, all, file, index) {
  const made = sheet(`${file.name}, page ${index + 1}`);
  sheets.set(index, made);
  all.append(made.node);
  return made;
}

// One page: its picture, the lines on it, and its Markdown; each comes when it comes.
function sheet(name) {
  const left = el("div", {class: "pane picture-pane"}), lines = el("div", {class: "pane"}), right = el("div", {class: "pane"});
  const notices = el("p", {class: "notices"});
  const node = el("section", {class: "card sheet", "aria-label": name}, el("h2", {}, name), notices,
    el("div", {class: "three"},
      el("div", {}, el("h3", {}, "Page"), left), el("div", {}, el("h3", {}, "Text"), lines), el("div", {}, el("h3", {}, "Markdown"), right)));
  const seen = new Set();
  let image = null, json = {};
  async function add(task, page, picture) {
    json = {...json, [task]: page};
    if (picture) {
      image = el("img", {src: picture.data, alt: name});
      await image.decode();
    }
    const placed = page.blocks.filter(block => block.box);
    if (placed.length || (image && !left.childElementCount)) left.replaceChildren(overlay(page, placed));
    for (const notice of page.notices.filter(one => !seen.has(one.code) && seen.add(one.code))) notices.append(el("span", {class: "tag warn", title: notice.message}, notice.code), " ");
    if (task === "document" || task === "table" || task === "chart") right.replaceChildren(...written(page.text));
    else if (task === "formula") right.replaceChildren(el("pre", {tabIndex: 0}, page.text));
    else if (page.fields) right.replaceChildren(keys(page.fields));
    else if (!placed.length) lines.replaceChildren(el("p", {class: "continued"}, page.text));
    behind();
  }
  function overlay(page, placed) {
    const drawn = image ? boxed(image, page.width, page.height, placed.map(block => ({points: block.box})), at => select(at)) : null;
    const items = placed.map((block, at) => el("li", {tabIndex: 0, title: block.score === null ? "" : percent(block.score), on: {
      pointerenter: () => select(at), focus: () => select(at), pointerleave: () => select(null), blur: () => select(null)}}, block.text));
    function select(at) {
      drawn?.mark(at);
      items.forEach((item, place) => item.classList.toggle("on", place === at));
    }
    if (placed.length) lines.replaceChildren(
      el("div", {class: "row"}, copying(() => placed.map(block => block.text).join("\n"))), el("ol", {class: "read"}, items));
    return drawn?.node ?? el("p", {class: "dim"}, "no picture");
  }
  function behind() {
    const text = JSON.stringify(json, null, 1);
    node.querySelector("details")?.remove();
    node.append(el("details", {}, el("summary", {}, "JSON"), el("div", {class: "code"}, copying(() => text), el("pre", {tabIndex: 0}, text))));
  }
  return {node, add, right};
}

function written(text) {
  const source = el("pre", {hidden: true, tabIndex: 0}, text), shown = markdown(text);
  const toggle = el("button", {type: "button", class: "quiet small", "aria-pressed": "false", on: {click: () => {
    const on = source.hidden;
    source.hidden = !on; shown.hidden = on;
    toggle.setAttribute("aria-pressed", String(on));
  }}}, "Source");
  return [el("div", {class: "row"}, copying(() => text), toggle), shown, source];
}

function keys(fields) {
  return el("table", {class: "plain"}, el("tbody", {}, Object.entries(fields).map(([name, value]) => el("tr", {},
    el("th", {scope: "row"}, name), el("td", {}, value === null ? "–" : typeof value === "string" ? value : JSON.stringify(value))))));
}

// Finds boxes, cuts each out upright, and has all of them read together.
async function readTogether(detector, recogniser, file, all, signal) {
  const found = await ask({path: "predict", form: [["model", detector.id], ["image", file]]}, {signal});
  const bitmap = await createImageBitmap(file);
  const lines = [];
  for (let at = 0; at < found.length; at += 64) {
    const cut = await Promise.all(found.slice(at, at + 64).map((one, place) => cutOut(bitmap, one.points, `line-${at + place}.png`)));
    const read = await ask({path: "predict", form: [["model", recogniser.id], ...cut.map(blob => ["image", blob])]}, {signal});
    lines.push(...(cut.length > 1 ? read : [read].flat()));
  }
  const blocks = found.map((one, at) => ({kind: "line", text: lines[at].text, box: one.points, score: lines[at].score}))
    .filter(block => block.text);
  const page = {index: 0, width: bitmap.width, height: bitmap.height, text: paragraphs(blocks), blocks, notices: [], fields: null};
  const made = sheet(file.name);
  all.append(made.node);
  await made.add("spotting", page, {data: URL.createObjectURL(file)});
  made.right.replaceChildren(...written(page.text));
  return `${blocks.length} lines`;
}

const far = (a, b) => Math.hypot(a[0] - b[0], a[1] - b[1]);

// A box whose sides are a, b (to the right) and a, d (down), drawn upright.
async function cutOut(bitmap, [a, b, , d], name) {
  const width = Math.max(1, Math.round(far(a, b))), height = Math.max(1, Math.round(far(a, d)));
  const canvas = new OffscreenCanvas(width, height), pen = canvas.getContext("2d");
  const [xx, xy, yx, yy] = [(b[0] - a[0]) / width, (b[1] - a[1]) / width, (d[0] - a[0]) / height, (d[1] - a[1]) / height];
  const whole = xx * yy - xy * yx || 1;
  const turn = new DOMMatrix([yy / whole, -xy / whole, -yx / whole, xx / whole, 0, 0]);
  const corner = turn.transformPoint({x: a[0], y: a[1]});
  pen.setTransform(turn.a, turn.b, turn.c, turn.d, -corner.x, -corner.y);
  pen.drawImage(bitmap, 0, 0);
  return new File([await canvas.convertToBlob({type: "image/png"})], name, {type: "image/png"});
}

// Lines in their order, with a paragraph wherever one stands further down than lines of one paragraph do, whose boxes are tight.
export function paragraphs(blocks) {
  let text = "", last = null;
  for (const {text: line, box} of blocks) {
    const top = Math.min(box[0][1], box[1][1]), bottom = Math.max(box[2][1], box[3][1]);
    if (last !== null) {
      const beside = top < last.bottom - (last.bottom - last.top) / 2;
      text += beside ? " " : top - last.bottom > 1.3 * (bottom - top) ? "\n\n" : "\n";
    }
    text += line;
    last = {top, bottom};
  }
  return text;
}
