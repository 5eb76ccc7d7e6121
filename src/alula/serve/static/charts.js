// Lines over time, drawn as SVG.

import {el, svg} from "./dom.js";

const WIDTH = 560, HEIGHT = 170, LEFT = 52, RIGHT = 8, TOP = 10, BOTTOM = 22;
const MOST = 150, FEWEST = 30;

export function figure(value) {
  if (value === null || value === undefined || !isFinite(value)) return "–";
  const size = Math.abs(value);
  if (size >= 1e6) return `${(value / 1e6).toFixed(1)} M`;
  if (size >= 1e4) return `${(value / 1e3).toFixed(1)} k`;
  return value.toFixed(size >= 100 || Number.isInteger(value) ? 0 : size >= 10 ? 1 : size >= 1 ? 2 : 3);
}

// The next of 1, 2, 5, 10 ... above.
function nice(most) {
  const power = 10 ** Math.floor(Math.log10(most || 1));
  return [1, 2, 5, 10].map(step => step * power).find(step => step >= most * 1.0001) ?? 10 * power;
}

// `push(values)` adds one moment: a number or null for each of `series`, which are named.
export function chart({title, about, series, unit = "", every}) {
  const moments = [];
  const lines = series.map((_, at) => svg("path", {class: `line s${at + 1}`}));
  const grid = svg("g", {class: "grid"}), cross = svg("line", {class: "cross", y1: TOP, y2: HEIGHT - BOTTOM, visibility: "hidden"});
  const drawn = svg("svg", {viewBox: `0 0 ${WIDTH} ${HEIGHT}`, class: "plot", role: "img", "aria-label": title}, grid, ...lines, cross);
  const figures = series.map(() => el("b", {}, "–"));
  const legend = el("p", {class: "legend"}, series.map((name, at) =>
    el("span", {}, el("i", {class: `key s${at + 1}`, "aria-hidden": "true"}), `${name} `, figures[at])));
  const when = el("span", {class: "dim when"});
  const node = el("figure", {class: "card chart"}, el("figcaption", {}, el("h2", {}, title), el("p", {class: "dim"}, about)), legend, drawn, when);
  let pointed = null;

  const span = () => Math.max(FEWEST, moments.length);
  const x = at => LEFT + (WIDTH - LEFT - RIGHT) * (at + span() - moments.length) / (span() - 1);
  const ago = share => {
    const seconds = (1 - share) * (span() - 1) * every;
    return share === 1 ? "now" : seconds < 120 ? `−${Math.round(seconds)} s` : `−${(seconds / 60).toFixed(1)} min`;
  };
  function draw() {
    const most = nice(Math.max(...moments.flat().filter(value => value !== null && isFinite(value)), 1e-3));
    const y = value => TOP + (HEIGHT - TOP - BOTTOM) * (1 - value / most);
    grid.replaceChildren(...[0, 0.5, 1].flatMap(share => {
      const at = y(share * most), text = svg("text", {x: LEFT - 7, y: at + 4, "text-anchor": "end"});
      text.textContent = figure(share * most);
      return [svg("line", {x1: LEFT, x2: WIDTH - RIGHT, y1: at, y2: at}), text];
    }), ...[0, 0.5, 1].map(share => {
      const text = svg("text", {x: LEFT + share * (WIDTH - LEFT - RIGHT), y: HEIGHT - 5, "text-anchor": share === 1 ? "end" : share ? "middle" : "start"});
      text.textContent = ago(share);
      return text;
    }));
    lines.forEach((line, which) => {
      let path = "", pen = "M";
      moments.forEach((values, at) => {
        const value = values[which];
        if (value === null || !isFinite(value)) { pen = "M"; return; }
        path += `${pen}${x(at).toFixed(1)} ${y(value).toFixed(1)}`;
        if (pen === "M") path += "m-1.5 0h3m-1.5 0";
        pen = "L";
      });
      line.setAttribute("d", path);
    });
    tell();
  }
  function tell() {
    const at = pointed === null ? moments.length - 1 : Math.max(0, Math.min(moments.length - 1, pointed));
    const values = moments[at] ?? series.map(() => null);
    figures.forEach((one, which) => { one.textContent = `${figure(values[which])}${values[which] === null ? "" : unit}`; });
    when.textContent = pointed === null ? "" : `${Math.round((moments.length - 1 - at) * every)} s ago`;
    cross.setAttribute("visibility", pointed === null ? "hidden" : "visible");
    if (pointed !== null) { cross.setAttribute("x1", x(at)); cross.setAttribute("x2", x(at)); }
    else drawn.setAttribute("aria-label", `${title}: ${series.map((name, which) => `${name} ${figures[which].textContent}`).join(", ")}`);
  }
  drawn.addEventListener("pointermove", event => {
    const bounds = drawn.getBoundingClientRect(), at = (event.clientX - bounds.left) / bounds.width * WIDTH;
    pointed = Math.round((at - LEFT) / (WIDTH - LEFT - RIGHT) * (span() - 1) - span() + moments.length);
    tell();
  });
  drawn.addEventListener("pointerleave", () => { pointed = null; tell(); });
  return {node, push(values) { moments.push(values); if (moments.length > MOST) moments.shift(); draw(); }};
}
