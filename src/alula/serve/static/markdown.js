// Markdown to elements, as far as models write it: nothing of it can be anything but text in a few kinds of elements.

import {el} from "./dom.js";

const INLINE = /(`+)([\s\S]+?)\1|\*\*([^*]+)\*\*|__([^_]+)__|\*([^*\s][^*]*)\*|\$\$([^$]+)\$\$|\$([^$\s](?:[^$]*[^$\s])?)\$(?!\d)/g;

function inline(text) {
  const parts = [];
  let at = 0;
  for (const found of text.matchAll(INLINE)) {
    parts.push(text.slice(at, found.index));
    const [whole, , code, bold, bolder, italic, display, formula] = found;
    if (code !== undefined) parts.push(el("code", {}, code));
    else if (bold ?? bolder) parts.push(el("strong", {}, inline(bold ?? bolder)));
    else if (italic !== undefined) parts.push(el("em", {}, inline(italic)));
    else parts.push(el("code", {class: "formula"}, display ?? formula));
    at = found.index + whole.length;
  }
  parts.push(text.slice(at));
  return parts.filter(part => part !== "").flat();
}

const cells = line => line.trim().replace(/^\||\|$/g, "").split("|").map(cell => cell.trim());

function pipes(lines) {
  const [head, , ...rows] = lines;
  return el("table", {class: "plain"},
    el("thead", {}, el("tr", {}, cells(head).map(cell => el("th", {scope: "col"}, inline(cell))))),
    el("tbody", {}, rows.map(row => el("tr", {}, cells(row).map(cell => el("td", {}, inline(cell)))))));
}

const NAMED = {amp: "&", lt: "<", gt: ">", quot: '"', apos: "'", nbsp: " "};

function unescaped(text) {
  return text.replace(/&(#x[0-9a-f]+|#\d+|\w+);/gi, (whole, name) => {
    if (name[0] !== "#") return NAMED[name.toLowerCase()] ?? whole;
    const point = name[1].toLowerCase() === "x" ? parseInt(name.slice(2), 16) : parseInt(name.slice(1), 10);
    return point > 0 && point <= 0x10ffff ? String.fromCodePoint(point) : whole;
  });
}

// A table as models write it in HTML: rows, cells, and how many of them one spans. All other tags are dropped.
export function htmlTable(html) {
  const table = el("table", {class: "plain"});
  for (const [, row] of html.matchAll(/<tr\b[^>]*>([\s\S]*?)(?=<\/tr|<tr\b|<\/table|$)/gi)) {
    const line = table.insertRow();
    for (const [, kind, given, body] of row.matchAll(/<(t[dh])\b([^>]*)>([\s\S]*?)(?=<\/t[dh]|<t[dh]\b|$)/gi)) {
      const span = name => Math.min(100, Number(given.match(new RegExp(`${name}\\s*=\\s*["']?(\\d+)`, "i"))?.[1] ?? 1)) || 1;
      const text = unescaped(body.replace(/<br\s*\/?>/gi, "\n").replace(/<[^>]*>/g, "")).trim();
      line.append(el(kind.toLowerCase(), {colSpan: span("colspan"), rowSpan: span("rowspan")}, text));
    }
  }
  return table;
}

export function markdown(text) {
  const made = el("div", {class: "markdown"}), lines = text.replace(/\r\n?/g, "\n").split("\n");
  let at = 0, paragraph = [];
  const flush = () => {
    if (!paragraph.length) return;
    const parts = paragraph.flatMap((line, place) => place ? [el("br"), ...inline(line)] : inline(line));
    made.append(el("p", {}, parts));
    paragraph = [];
  };
  const taken = test => {
    const start = at;
    while (at < lines.length && test(lines[at])) at++;
    return lines.slice(start, at);
  };
  while (at < lines.length) {
    const line = lines[at], bare = line.trim();
    const title = bare.match(/^(#{1,6})\s+(.*)$/), listed = line.match(/^\s*([-*+]|\d+[.)])\s+/);
    if (bare.startsWith("```")) {
      flush(); at++;
      const code = taken(one => !one.trim().startsWith("```"));
      at++;
      made.append(el("pre", {tabIndex: 0}, code.join("\n")));
    } else if (/^<table/i.test(bare)) {
      flush();
      const html = taken(one => !/<\/table>/i.test(one));
      if (at < lines.length) html.push(lines[at++]);
      made.append(el("div", {class: "scroll"}, htmlTable(html.join("\n"))));
    } else if (bare.startsWith("|") && /^\|?[\s:|-]+\|?$/.test(lines[at + 1] ?? "") && (lines[at + 1] ?? "").includes("-")) {
      flush();
      made.append(el("div", {class: "scroll"}, pipes(taken(one => one.trim().startsWith("|")))));
    } else if (title) {
      flush(); at++;
      made.append(el(`h${Math.min(6, title[1].length + 2)}`, {}, inline(title[2])));
    } else if (listed) {
      flush();
      const items = taken(one => /^\s*([-*+]|\d+[.)])\s+/.test(one)).map(one => one.replace(/^\s*([-*+]|\d+[.)])\s+/, ""));
      made.append(el(/\d/.test(listed[1]) ? "ol" : "ul", {}, items.map(item => el("li", {}, inline(item)))));
    } else if (/^(-{3,}|\*{3,})$/.test(bare)) { flush(); at++; made.append(el("hr")); }
    else if (!bare) { flush(); at++; }
    else { paragraph.push(line); at++; }
  }
  flush();
  return made;
}
