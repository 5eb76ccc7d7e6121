// Elements made of values; text is only ever text.

export function el(tag, given = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(given)) {
    if (value === undefined || value === null || value === false) continue;
    if (name === "on") for (const [what, run] of Object.entries(value)) made.addEventListener(what, run);
    else if (name === "css") for (const [key, set] of Object.entries(value)) made.style.setProperty(key, set);
    else if (name in made && name !== "list" && name !== "form") made[name] = value;
    else made.setAttribute(name === "class" ? "class" : name, value === true ? "" : value);
  }
  made.append(...children.flat().filter(child => child !== null && child !== undefined && child !== false));
  return made;
}

export function svg(tag, given = {}, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(given)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

let fields = 0;

// A labelled field: {name, label, kind, value, hint, ...attributes}. Kinds: text, lines, number, check, choice.
export function field({name, label, kind = "text", value, hint, choices, ...more}) {
  const id = `field-${++fields}`, about = hint ? `${id}-about` : undefined;
  const shared = {id, name, "aria-describedby": about, ...more};
  let input;
  if (kind === "lines") input = el("textarea", {rows: 4, spellcheck: false, value: value ?? "", ...shared});
  else if (kind === "choice")
    input = el("select", shared, choices.map(one => el("option", {value: one, selected: one === value}, one)));
  else if (kind === "check") input = el("input", {type: "checkbox", checked: Boolean(value), ...shared});
  else input = el("input", {type: kind, value: value ?? "", ...shared});
  const named = el("label", {htmlFor: id}, label), told = hint ? el("small", {id: about, class: "dim"}, hint) : null;
  const node = kind === "check"
    ? el("div", {class: "field check"}, input, named, told)
    : el("div", {class: "field"}, named, input, told);
  const read = () => kind === "check" ? input.checked
    : kind === "number" ? (input.value === "" ? undefined : Number(input.value)) : input.value;
  return {name, node, input, read};
}

let drops = 0;

// A place for files: drop, paste or choose. `taken` is called with a list of files.
export function dropzone({label, accept, multiple = false, taken}) {
  const id = `files-${++drops}`;
  const input = el("input", {type: "file", id, accept, multiple, class: "hidden-input", on: {change: () => {
    if (input.files.length) taken([...input.files]);
  }}});
  const zone = el("label", {class: "drop", htmlFor: id},
    el("strong", {}, label), el("span", {class: "dim"}, "Drop, paste, or choose a file"));
  const node = el("div", {class: "drop-holder"}, input, zone);
  const over = on => event => { event.preventDefault(); zone.classList.toggle("over", on); };
  node.addEventListener("dragover", over(true));
  node.addEventListener("dragleave", over(false));
  node.addEventListener("drop", event => {
    over(false)(event);
    const files = [...event.dataTransfer.files];
    if (files.length) taken(multiple ? files : files.slice(0, 1));
  });
  node.paste = event => {
    const files = [...(event.clipboardData?.files ?? [])];
    if (files.length) { event.preventDefault(); taken(multiple ? files : files.slice(0, 1)); }
  };
  return node;
}

export function bar(share, label, figure) {
  const width = `${(100 * Math.max(0, Math.min(1, share))).toFixed(1)}%`;
  return el("div", {class: "bar"},
    el("span", {class: "bar-label", title: label}, label),
    el("span", {class: "bar-track", "aria-hidden": "true"}, el("span", {class: "bar-fill", css: {width}})),
    el("span", {class: "bar-figure"}, figure));
}

export function percent(score) { return `${(100 * score).toFixed(1)} %`; }

export function duration(seconds) {
  if (!isFinite(seconds)) return "–";
  return seconds < 1 ? `${(1000 * seconds).toFixed(seconds < 0.01 ? 1 : 0)} ms` : `${seconds.toFixed(seconds < 10 ? 2 : 1)} s`;
}

export function copying(text) {
  const button = el("button", {type: "button", class: "quiet small", on: {click: async () => {
    try { await navigator.clipboard.writeText(text()); button.textContent = "Copied"; }
    catch { button.textContent = "Not allowed"; }
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  }}}, "Copy");
  return button;
}
