// Models that write: chats, and texts that are gone on with, shown as they are written.

import {streamed} from "./api.js";
import {dropzone, duration, el, field} from "./dom.js";
import {markdown} from "./markdown.js";
import {heading, outcome} from "./panel.js";

const settings = () => [
  {name: "max_tokens", label: "Tokens at most", kind: "number", value: 256, min: 1, step: 1},
  {name: "temperature", label: "Temperature", kind: "number", min: 0, max: 2, step: 0.1, placeholder: "model's own",
    hint: "0 takes the likeliest token always"},
].map(field);

const asked = fields => Object.fromEntries(fields.map(one => [one.name, one.read()])
  .filter(([, value]) => value !== undefined && value !== ""));

// Reads a stream to its end: `text` is told of every piece. Gives what it took.
async function written(request, signal, text) {
  const began = performance.now();
  let first = null, usage = null, ending = null, instead = "";
  for await (const event of streamed(request, signal, reason => { instead = `degraded: ${reason}`; })) {
    usage = event.usage ?? usage;
    const choice = event.choices?.[0];
    if (!choice) continue;
    ending = choice.finish_reason ?? ending;
    const piece = choice.delta ? choice.delta.content : choice.text;
    if (piece) { first ??= performance.now(); text(piece); }
  }
  const now = performance.now(), tokens = usage?.completion_tokens ?? 0;
  const rate = first && tokens > 1 && now > first ? (tokens - 1) / ((now - first) / 1000) : null;
  return {seconds: (now - began) / 1000, told: [
    first ? `first token after ${duration((first - began) / 1000)}` : "",
    tokens ? `${tokens} tokens` : "", rate ? `${rate.toFixed(rate < 10 ? 1 : 0)} tokens/s` : "",
    ending === "length" ? "cut at its most tokens" : "", instead].filter(Boolean).join(" · ")};
}

export function chat(model) {
  let messages = [], stop = null, images = [];
  const log = el("div", {class: "log", role: "log", "aria-label": "Conversation", tabIndex: 0});
  const told = el("p", {class: "told dim", role: "status"}, "Nothing asked yet.");
  const system = field({name: "system", label: "System message", kind: "lines", rows: 2, placeholder: "none"});
  const options = settings();
  const input = el("textarea", {id: "chat-input", rows: 3, placeholder: "Ask something", on: {keydown: event => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); form.requestSubmit(); }
  }}});
  const go = el("button", {type: "submit", class: "primary"}, "Send");
  const halt = el("button", {type: "button", disabled: true, on: {click: () => stop?.abort()}}, "Stop");
  const clear = el("button", {type: "button", on: {click: () => {
    stop?.abort(); messages = []; log.replaceChildren(); told.textContent = "Nothing asked yet."; input.focus();
  }}}, "New chat");
  const shown = el("div", {class: "thumbs"});
  const zone = model.reads_images ? dropzone({label: "Images for the next message", accept: "image/*", multiple: true, taken: async files => {
    images = await Promise.all(files.map(dataUrl));
    shown.replaceChildren(...images.map(src => el("img", {src, alt: "", class: "thumb"})));
  }}) : null;
  const form = el("form", {class: "say", on: {submit: event => { event.preventDefault(); say(); }}},
    el("label", {htmlFor: "chat-input", class: "hidden"}, "Message"), shown, input, el("div", {class: "row"}, go, halt, clear));

  function bubble(role, text) {
    const body = el("div", {class: "text"}, text);
    log.append(el("article", {class: `said ${role}`, "aria-label": role === "user" ? "You" : model.id},
      el("span", {class: "who"}, role === "user" ? "You" : model.id), body));
    log.scrollTop = log.scrollHeight;
    return body;
  }

  async function say() {
    const text = input.value.trim();
    if (!text || stop) return;
    const parts = images.map(url => ({type: "image_url", image_url: {url}}));
    messages.push({role: "user", content: parts.length ? [...parts, {type: "text", text}] : text});
    const asking = bubble("user", text);
    if (images.length) asking.prepend(...images.map(src => el("img", {src, alt: "image sent", class: "thumb"})));
    input.value = ""; images = []; shown.replaceChildren();
    const body = bubble("assistant", "");
    body.classList.add("writing");
    const said = system.read().trim(), head = said ? [{role: "system", content: said}] : [];
    stop = new AbortController();
    halt.disabled = false; go.disabled = true;
    told.className = "told dim"; told.textContent = "Writing …";
    let answer = "";
    try {
      const request = {path: "v1/chat/completions", body: {model: model.id, messages: [...head, ...messages], stream: true,
        stream_options: {include_usage: true}, ...asked(options)}};
      const took = await written(request, stop.signal, piece => {
        answer += piece;
        body.textContent = answer;
        log.scrollTop = log.scrollHeight;
      });
      told.className = "told"; told.textContent = took.told || "An empty answer.";
    } catch (error) {
      told.className = error.name === "AbortError" ? "told" : "told bad";
      told.textContent = error.name === "AbortError" ? "Stopped." : error.message;
    } finally {
      body.classList.remove("writing");
      if (answer) { messages.push({role: "assistant", content: answer}); body.replaceChildren(markdown(answer)); }
      else { messages.pop(); body.textContent = "(no answer)"; body.classList.add("dim"); }
      stop = null; halt.disabled = true; go.disabled = false;
    }
  }

  const node = el("div", {}, heading(model, "A conversation, answered as it is written. Enter sends, Shift+Enter begins a new line."),
    el("div", {class: "two chat"},
      el("section", {class: "card talk", "aria-label": "Chat"}, log, told, form),
      el("section", {class: "card side", "aria-label": "Settings"}, zone, system.node, options.map(one => one.node))));
  if (zone) node.paste = zone.paste;
  node.leave = () => stop?.abort();
  return node;
}

const dataUrl = file => new Promise((done, failed) => {
  const reader = new FileReader();
  reader.onload = () => done(reader.result);
  reader.onerror = () => failed(reader.error);
  reader.readAsDataURL(file);
});

export function completion(model) {
  const rewrites = model.task === "text2text-generation", out = outcome(), options = settings();
  const prompt = field({name: "prompt", label: rewrites ? "Text" : "Beginning", kind: "lines", rows: 6, required: true,
    value: rewrites ? "translate English to German: The parrot sat on the fence." : "Once there was a parrot who"});
  let stop = null;
  const go = el("button", {type: "submit", class: "primary"}, "Write");
  const halt = el("button", {type: "button", disabled: true, on: {click: () => stop?.abort()}}, "Stop");
  const form = el("form", {class: "card", "aria-label": "Request", on: {submit: async event => {
    event.preventDefault();
    const given = prompt.read(), body = {model: model.id, prompt: given, stream: true, stream_options: {include_usage: true}, ...asked(options)};
    const text = el("span", {}), shown = el("p", {class: "continued writing"}, rewrites ? "" : el("span", {class: "dim"}, given), text);
    out.busy("Writing …"); out.shown.replaceChildren(shown);
    stop = new AbortController(); halt.disabled = false; go.disabled = true;
    try {
      const took = await written({path: "v1/completions", body}, stop.signal, piece => text.append(piece));
      out.done(took.seconds, took.told ? ` · ${took.told}` : "");
      const {stream, stream_options, ...plain} = body;
      out.told({path: "v1/completions", body: plain}, {text: text.textContent});
    } catch (error) { out.failed(error); }
    finally { shown.classList.remove("writing"); stop = null; halt.disabled = true; go.disabled = false; }
  }}}, prompt.node, options.map(one => one.node), el("div", {class: "row"}, go, halt));
  const node = el("div", {}, heading(model, rewrites ? "What the model makes of a text." : "How a text goes on."),
    el("div", {class: "two"}, form, out.node));
  node.leave = () => stop?.abort();
  return node;
}
