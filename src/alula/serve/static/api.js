// What is asked of the server. The key lives in this variable, and nowhere else.

let key = "";
export function setKey(given) { key = given.trim(); }

export class Refused extends Error {
  constructor(message, status) { super(message); this.status = status; }
}

export function authorized(more = {}) { return key ? {...more, authorization: `Bearer ${key}`} : more; }

export async function get(path, {signal} = {}) {
  const response = await fetch(path, {headers: authorized(), signal, cache: "no-store"});
  if (!response.ok) throw await refusal(response);
  return (response.headers.get("content-type") ?? "").includes("json") ? response.json() : response.text();
}

// A request is {path, body} with JSON, or {path, form} with files: [name, value] pairs.
// `heard` is told why, if a cheaper engine answered in place of the model's own.
export async function ask(request, {signal, heard} = {}) {
  const response = await send(request, signal, heard);
  return response.json();
}

async function send({path, body, form}, signal, heard = () => {}) {
  const options = body !== undefined
    ? {body: JSON.stringify(body), headers: authorized({"content-type": "application/json"})}
    : {body: formData(form), headers: authorized()};
  const response = await fetch(path, {method: "POST", signal, ...options});
  if (!response.ok) throw await refusal(response);
  const degraded = response.headers.get("x-alula-degraded");
  if (degraded) heard(degraded);
  return response;
}

function formData(pairs) {
  const made = new FormData();
  for (const [name, value] of pairs) made.append(name, value instanceof Blob ? value : String(value));
  return made;
}

async function refusal(response) {
  let said = `${response.status} ${response.statusText}`;
  try {
    const {error} = await response.json();
    said = error?.message ?? error ?? said;
  } catch { /* no JSON: a proxy may have answered */ }
  const later = response.headers.get("retry-after");
  return new Refused(later ? `${said} (try again in ${later} s)` : said, response.status);
}

// Objects of a stream of server-sent events, or of lines of JSON.
export async function* streamed(request, signal, heard) {
  const response = await send(request, signal, heard);
  const events = (response.headers.get("content-type") ?? "").startsWith("text/event-stream");
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const {done, value} = await reader.read();
    rest += value ?? "";
    const lines = rest.split("\n");
    rest = done ? "" : lines.pop();
    for (let line of lines) {
      line = line.trim();
      if (events) line = line.startsWith("data:") ? line.slice(5).trim() : "";
      if (!line || line === "[DONE]") continue;
      const object = JSON.parse(line);
      if (object.error) throw new Refused(object.error.message ?? object.error);
      yield object;
    }
    if (done) return;
  }
}

// The same request for a terminal.
export function curl({path, body, form}) {
  const lines = [`curl ${new URL(path, location.href).href}`];
  if (key) lines.push('-H "Authorization: Bearer $KEY"');
  if (body !== undefined) {
    lines.push("-H 'content-type: application/json'", `-d ${quoted(JSON.stringify(body))}`);
  } else for (const [name, value] of form) {
    lines.push(value instanceof Blob ? `-F ${quoted(`${name}=@${value.name ?? "image.png"}`)}` : `-F ${quoted(`${name}=${value}`)}`);
  }
  return lines.join(" \\\n  ");
}

function quoted(text) { return `'${text.replaceAll("'", "'\\''")}'`; }
