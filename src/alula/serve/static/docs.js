// Every endpoint that openapi.json describes, with a form to try it.

import {authorized, setKey} from "./api.js";

const main = document.getElementById("main"), template = document.querySelector("template");

function kindOf(schema) {
  // Whatever may be left out may be null, too, which need not be said of each.
  const kinds = [schema.type ?? []].flat().filter(kind => kind !== "null");
  const several = schema.oneOf ?? schema.anyOf ?? [];
  return kinds.join(" | ") || (schema.enum ?? []).filter(one => one !== null).join(" | ") ||
    several.map(kindOf).filter(Boolean).join(" | ");
}

function row(name, schema, required) {
  const line = document.createElement("tr");
  for (const text of [name + (required ? " *" : ""), kindOf(schema), schema.description || ""])
    line.insertCell().textContent = text;
  return line;
}

function show(path, method, operation) {
  const box = template.content.cloneNode(true), find = what => box.querySelector(what);
  find(".method").textContent = method.toUpperCase();
  find(".path").textContent = path;
  find(".about").textContent = operation.summary;
  const area = find("textarea"), answer = find("pre"), table = find("table");
  const content = operation.requestBody && operation.requestBody.content["application/json"];
  if (content) {
    area.value = JSON.stringify(content.example, null, 2);
    for (const [name, schema] of Object.entries(content.schema.properties))
      table.append(row(name, schema, (content.schema.required ?? []).includes(name)));
  } else area.remove();
  find("button").onclick = async () => {
    answer.hidden = false;
    answer.textContent = "...";
    const started = performance.now();
    try {
      const options = content ? {method, body: area.value, headers: authorized({"content-type": "application/json"})} : {headers: authorized()};
      const filled = path.slice(1).replace(/{(\w+)}/g, (_, name) => encodeURI(prompt(name) || ""));
      const response = await fetch(filled, options);
      let text = await response.text();
      try { text = JSON.stringify(JSON.parse(text), null, 1) } catch {}
      answer.textContent = `${response.status} in ${Math.round(performance.now() - started)} ms\n\n${text}`;
    } catch (error) { answer.textContent = String(error) }
  };
  main.append(box);
}

document.getElementById("key-form").addEventListener("submit", event => event.preventDefault());
document.getElementById("key").addEventListener("change", event => setKey(event.target.value));
fetch("openapi.json").then(response => response.json()).then(described => {
  main.textContent = "";
  for (const [path, methods] of Object.entries(described.paths))
    for (const [method, operation] of Object.entries(methods)) show(path, method, operation);
}).catch(error => { main.textContent = String(error) });
