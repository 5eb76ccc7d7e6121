// Models that look at images.

import {bar, el, percent, svg} from "./dom.js";
import {imagePanel} from "./panel.js";
import {scores, strip} from "./texts.js";

const figure = (image, ...rest) => el("figure", {class: "looked"}, image, el("figcaption", {}, rest));

export function classes(model) {
  return imagePanel(model, {
    lead: "What is in an image, the likeliest first.",
    label: "Images to label",
    more: [{name: "top_k", label: "Labels", kind: "number", value: 5, min: 1, max: 50, step: 1}],
    show: (answer, image) => figure(image, scores(answer)),
  });
}

export function vectors(model) {
  return imagePanel(model, {
    lead: "Each image becomes a vector.",
    label: "Images to embed",
    show: (answer, image) => figure(image, el("p", {}, `${answer.embedding.length} numbers`), strip(answer.embedding)),
  });
}

export function readLines(model) {
  return imagePanel(model, {
    lead: "Each image is one line of text, and is read.",
    label: "Lines to read",
    show: (answer, image) => figure(image, el("p", {class: "line-text"}, answer.text || "(nothing)"),
      bar(answer.score, "sure", percent(answer.score))),
  });
}

export function regions(model) {
  return imagePanel(model, {
    lead: "Where text stands on a page.",
    label: "Pages to look at",
    show: (answer, image) => figure(
      image instanceof HTMLImageElement ? boxed(image, image.naturalWidth, image.naturalHeight, answer).node : image,
      el("p", {}, `${answer.length} places with text`)),
  });
}

// A page with outlines over it, in its own pixels. `picked(at)` when one is pointed at; `mark(at)` shows one.
export function boxed(image, width, height, found, picked = () => {}) {
  image.className = "page-image";
  const shapes = found.map((one, at) => one.points && svg("polygon", {points: one.points.map(point => point.join(",")).join(" "), "data-at": at}));
  const layer = svg("svg", {viewBox: `0 0 ${width} ${height}`, class: "boxes", "aria-hidden": "true"}, ...shapes.filter(Boolean));
  layer.addEventListener("pointerover", event => picked(event.target.dataset.at === undefined ? null : Number(event.target.dataset.at)));
  layer.addEventListener("pointerleave", () => picked(null));
  return {
    node: el("div", {class: "page-picture"}, image, layer),
    mark: at => shapes.forEach((shape, place) => shape?.classList.toggle("on", place === at)),
  };
}
