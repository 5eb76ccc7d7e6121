// Models that read texts and answer in one call.

import {bar, el, percent} from "./dom.js";
import {panel} from "./panel.js";

const lines = text => text.split("\n").map(line => line.trim()).filter(Boolean);

export function embeddings(model) {
  return panel(model, {
    lead: "Each line becomes a vector; the closer two lines are in meaning, the nearer to 1 their cosine.",
    button: "Embed",
    fields: [{name: "texts", label: "Texts, one a line", kind: "lines", rows: 8, required: true, value:
      "A parrot sat on the fence.\nThere is a bird outside.\nThe stock market fell today.\nShares lose value this afternoon."}],
    request: ({texts}) => ({path: "v1/embeddings", body: {model: model.id, input: lines(texts)}}),
    show: (answer, {texts}) => similarities(lines(texts), answer.data.map(one => one.embedding)),
  });
}

function cosine(a, b) {
  let ab = 0, aa = 0, bb = 0;
  for (let at = 0; at < a.length; at++) { ab += a[at] * b[at]; aa += a[at] ** 2; bb += b[at] ** 2; }
  return ab / Math.sqrt(aa * bb || 1);
}

function similarities(texts, vectors) {
  const shown = Math.min(texts.length, 24);
  const cell = (row, column) => {
    const value = cosine(vectors[row], vectors[column]), share = Math.max(0, value);
    return el("td", {class: share > 0.8 ? "heat strong" : "heat", css: {"--share": `${(100 * share).toFixed(0)}%`},
      title: `${texts[row]} / ${texts[column]}`}, value.toFixed(2).replace(/^-(0\.00)$/, "$1"));
  };
  const places = [...Array(shown).keys()];
  return el("div", {},
    el("div", {class: "scroll", tabIndex: 0, role: "group", "aria-label": "Cosines"}, el("table", {class: "matrix"},
      el("caption", {}, `${vectors.length} vectors of ${vectors[0].length} numbers; their cosines`),
      el("thead", {}, el("tr", {}, el("td"), places.map(at => el("th", {scope: "col", title: texts[at]}, String(at + 1))))),
      el("tbody", {}, places.map(row => el("tr", {},
        el("th", {scope: "row", title: texts[row]}, `${row + 1}. ${texts[row]}`), places.map(column => cell(row, column))))))),
    el("h3", {}, "Vectors"),
    places.map(at => el("div", {class: "strip-row"}, el("span", {class: "strip-name"}, String(at + 1)), strip(vectors[at]))),
    texts.length > shown ? el("p", {class: "dim"}, `The first ${shown} of ${texts.length} are shown; JSON below has all.`) : null);
}

// A vector as a strip: blue below zero, orange above, by how much.
export function strip(vector) {
  const canvas = el("canvas", {width: vector.length, height: 1, class: "strip", role: "img",
    "aria-label": `${vector.length} numbers, the first ${vector.slice(0, 4).map(one => one.toFixed(3)).join(", ")}`});
  const pen = canvas.getContext("2d"), pixels = pen.createImageData(vector.length, 1);
  const most = vector.reduce((big, one) => Math.max(big, Math.abs(one)), 1e-9);
  vector.forEach((one, at) => {
    pixels.data.set(one < 0 ? [37, 99, 200] : [214, 110, 20], 4 * at);
    pixels.data[4 * at + 3] = 255 * Math.min(1, 1.6 * Math.abs(one) / most);
  });
  pen.putImageData(pixels, 0, 0);
  return canvas;
}

export function labels(model) {
  return panel(model, {
    lead: "Each line is given the label that fits it best.",
    button: "Label",
    fields: [{name: "texts", label: "Texts, one a line", kind: "lines", rows: 6, required: true, value:
      "What a wonderful morning.\nNothing works today."}],
    request: ({texts}) => ({path: "predict", body: {model: model.id, inputs: lines(texts).map(text => [text])}}),
    show: (answer, {texts}) => el("div", {}, lines(texts).map((text, at) => el("figure", {class: "labelled"},
      el("figcaption", {}, text), scores(answer[at])))),
  });
}

export function scores(found) {
  return el("div", {class: "bars"}, found.slice(0, 10).map(one => bar(one.score, one.label || "(empty)", percent(one.score))));
}

export function entities(model) {
  return panel(model, {
    lead: "Names, places and whatever else the model knows are marked where they stand.",
    button: "Find",
    fields: [{name: "text", label: "Text", kind: "lines", rows: 7, required: true, value:
      "My name is Sarah Connor and I live at 12 Baker Street in Los Angeles. Call me at 555-0134 or write to sarah@example.com."}],
    request: ({text}) => ({path: "predict", body: {model: model.id, inputs: text}}),
    show: (answer, {text}) => marked(text, answer.map(one => ({...one, label: one.entity_group ?? one.entity}))),
  });
}

function hue(label) {
  let sum = 7;
  for (const letter of label) sum = (sum * 31 + letter.codePointAt(0)) % 360;
  return sum;
}

// Places are counted in code points, strings of JavaScript in halves of them.
function marked(text, found) {
  const points = [...text], parts = [];
  let at = 0;
  for (const one of [...found].sort((a, b) => a.start - b.start)) {
    if (one.start < at) continue;
    parts.push(points.slice(at, one.start).join(""),
      el("mark", {css: {"--hue": String(hue(one.label))}, title: percent(one.score)},
        points.slice(one.start, one.end).join(""), el("small", {}, one.label)));
    at = one.end;
  }
  parts.push(points.slice(at).join(""));
  return el("div", {},
    el("p", {class: "marked"}, parts),
    found.length ? el("table", {class: "plain"},
      el("thead", {}, el("tr", {}, ["Entity", "Text", "Score", "Characters"].map(name => el("th", {scope: "col"}, name)))),
      el("tbody", {}, found.map(one => el("tr", {}, el("td", {}, one.label), el("td", {}, one.word),
        el("td", {class: "figure"}, percent(one.score)), el("td", {class: "figure"}, `${one.start}–${one.end}`)))))
      : el("p", {class: "dim"}, "Nothing found."));
}

export function answers(model) {
  return panel(model, {
    lead: "The answer is a piece of the context.",
    fields: [
      {name: "question", label: "Question", required: true, value: "Who sat on the fence?"},
      {name: "context", label: "Context", kind: "lines", rows: 7, required: true, value:
        "On Monday a grey parrot sat on the fence, while the cat slept under the old tree."},
      {name: "top_k", label: "Answers", kind: "number", value: 3, min: 1, max: 20, step: 1}],
    request: ({question, context, top_k}) => ({path: "predict", body: {model: model.id, question, context, top_k}}),
    show: (answer, {context}) => {
      const all = Array.isArray(answer) ? answer : [answer];
      return el("div", {},
        marked(context, all.slice(0, 1).map(one => ({...one, label: "answer", word: one.answer}))),
        el("h3", {}, "Candidates"),
        el("div", {class: "bars"}, all.map(one => bar(one.score, one.answer || "(empty)", percent(one.score)))));
    },
  });
}

export function reranking(model) {
  return panel(model, {
    lead: "Texts in the order in which they answer the query.",
    button: "Rank",
    fields: [
      {name: "query", label: "Query", required: true, value: "Which bird talks?"},
      {name: "texts", label: "Texts, one a line", kind: "lines", rows: 6, required: true, value:
        "Fences are made of wood.\nParrots can imitate speech.\nThe stock market fell today."}],
    request: ({query, texts}) => ({path: "rerank", body: {model: model.id, query, texts: lines(texts)}}),
    show: (answer, {texts}) => el("ol", {class: "ranked"}, answer.map(one =>
      el("li", {}, bar(one.score, lines(texts)[one.index], one.score.toFixed(4))))),
  });
}

export function tensors(model, {metadata}) {
  const sample = {inputs: metadata.inputs.map(input => ({
    name: input.name, datatype: input.datatype, shape: input.shape.map(size => Math.max(size, 1)),
    data: Array(input.shape.reduce((all, size) => all * Math.max(size, 1), 1)).fill(input.datatype === "BYTES" ? "" : 0)}))};
  const big = sample.inputs.some(input => input.data.length > 4096);
  return panel(model, {
    lead: "Arrays in, arrays out, as the Open Inference Protocol writes them in JSON. Sizes of -1 may vary.",
    fields: [{name: "body", label: "Request", kind: "lines", rows: 14, required: true, class: "mono",
      hint: metadata.inputs.map(one => `${one.name}: ${one.datatype} [${one.shape}]`).join("; "),
      value: big ? "" : JSON.stringify(sample, null, 1)}],
    request: ({body}) => ({path: `v2/models/${encodeURI(model.id)}/infer`, body: JSON.parse(body)}),
    show: answer => el("div", {}, answer.outputs.map(one => el("figure", {class: "labelled"},
      el("figcaption", {}, `${one.name}: ${one.datatype} [${one.shape}]`),
      el("pre", {tabIndex: 0}, `${one.data.slice(0, 64).join(", ")}${one.data.length > 64 ? " …" : ""}`)))),
  });
}
