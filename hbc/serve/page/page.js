// The page of `hbc serve`. It asks /overview every second, and /overview/models when the models change. All text goes in as text, never as HTML.
"use strict";

const $ = (id) => document.getElementById(id);
const make = (tag, text, properties = {}) => Object.assign(document.createElement(tag), text === undefined ? {} : { textContent: text }, properties);
const OTHER = "other", MISSING = "missing";

let token = "";
let models = [];        // of /overview/models
let known = "";         // which models these are

async function ask(path, options = {}) {
  const headers = { ...(options.headers ?? {}), ...(token ? { authorization: `Bearer ${token}` } : {}) };
  const answer = await fetch(path, { ...options, headers, cache: "no-store", signal: AbortSignal.timeout(30000) });
  const text = await answer.text();
  let found;
  try {
    found = JSON.parse(text);
  } catch {
    throw new Error(`The server answered ${answer.status} with what is no JSON: ${text.slice(0, 200)}`);
  }
  if (answer.status === 401) {
    $("access").hidden = false;
  }
  if (!answer.ok) {
    throw new Error(found.error ?? `The server answered ${answer.status}.`);
  }
  return { found, text };
}

function trouble(message) {
  if ($("trouble").textContent !== message) {
    $("trouble").textContent = message;
  }
  $("trouble").hidden = !message;
}

// --- what is live --------------------------------------------------------------------------------------------------------

function seconds(value) {
  if (value < 1e-3) return `${+(value * 1e6).toPrecision(3)} µs`;
  return value < 1 ? `${+(value * 1e3).toPrecision(3)} ms` : `${+value.toPrecision(3)} s`;
}

const rounded = (rate) => (rate >= 100 ? Math.round(rate).toLocaleString("en") : rate.toFixed(1));

async function look() {
  try {
    const { found } = await ask("overview");
    const names = JSON.stringify(found.models.map((model) => [model.name, model.version, model.loaded]));
    if (names !== known) {
      models = (await ask("overview/models")).found.models;
      known = names;
      offerModels();
    }
    show(found);
    trouble("");
  } catch (error) {
    $("server").textContent = "No answer from the server.";
    trouble(error.name === "TypeError" ? "The server cannot be reached. This page asks again every second." : error.message);
  }
  setTimeout(look, 1000);
}

function show(found) {
  const count = found.models.filter((model) => model.state === "READY").length;
  const workers = found.workers === 1 ? "one process" : `${found.workers} processes`;
  $("server").textContent = `hbc ${found.version}: ${found.ready ? "ready" : "not ready"}, ${count} model${count === 1 ? "" : "s"}, ${workers}`;
  $("models").tBodies[0].replaceChildren(...found.models.map((model) => {
    const row = make("tr");
    const state = model.reason ? `${model.state.toLowerCase()}: ${model.reason}` : model.state.toLowerCase();
    row.append(...[model.name, model.version, state].map((text) => make("td", text)));
    const mean = model.success ? seconds(model.request_seconds / model.success) : "–";
    const counts = [model.success, model.failure, model.rows].map((value) => value.toLocaleString("en"));
    row.append(...[...counts, mean].map((text) => make("td", text, { className: "number" })));
    return row;
  }));
  $("rate").textContent = rounded(found.rates.at(-1));
  $("most").textContent = rounded(Math.max(...found.rates));
  drawRates(found.rates);
  drawLatency(found);
}

function drawRates(rates) {
  const most = Math.max(1, ...rates);
  const points = rates.map((rate, i) => `${(600 * i / (rates.length - 1)).toFixed(1)},${(78 - 74 * rate / most).toFixed(1)}`).join("L");
  const [area, line] = $("rates").children;
  line.setAttribute("d", `M${points}`);
  area.setAttribute("d", `M0,80L${points}L600,80Z`);
}

function drawLatency(found) {
  const sums = found.bounds.map(() => 0).concat(0);
  for (const model of found.models) model.histogram.forEach((value, i) => { sums[i] += value; });
  const all = sums.reduce((a, b) => a + b, 0), most = Math.max(...sums, 1);
  const first = sums.findIndex((value) => value), last = sums.findLastIndex((value) => value);
  const rows = [];
  for (let i = first; i >= 0 && i <= last; i++) {
    const label = i < found.bounds.length ? `up to ${seconds(found.bounds[i])}` : `over ${seconds(found.bounds.at(-1))}`;
    const row = make("div");
    row.setAttribute("role", "listitem");
    const bar = make("span", undefined, { className: "bar" });
    bar.style.width = `${100 * sums[i] / most}%`;
    row.append(make("span", label, { className: "number" }), bar, make("span", sums[i].toLocaleString("en"), { className: "number" }));
    rows.push(row);
  }
  $("latency").replaceChildren(...rows);
  const quantile = (part) => {
    let sum = 0;
    const place = sums.findIndex((value) => (sum += value) >= part * all);
    return place < found.bounds.length ? `at most ${seconds(found.bounds[place])}` : `over ${seconds(found.bounds.at(-1))}`;
  };
  $("latency-note").textContent = all
    ? `${all.toLocaleString("en")} answered. Half of them took ${quantile(0.5)}, 99 % took ${quantile(0.99)}.`
    : "No request was answered yet.";
}

// --- the form ------------------------------------------------------------------------------------------------------------

const key = (model) => `${model.name} ${model.version}`;
const chosen = () => models.find((model) => key(model) === $("model").value);

function offerModels() {
  const kept = $("model").value;
  const same = JSON.stringify(chosen());
  $("model").replaceChildren(...models.map((model) => make("option", `${model.name}, version ${model.version}`, { value: key(model) })));
  if (models.some((model) => key(model) === kept)) $("model").value = kept;
  $("send").disabled = !models.length;
  if (!kept || JSON.stringify(chosen()) !== same || same === undefined) offerFields();
}

function offerFields() {
  const model = chosen();
  $("answer").replaceChildren();
  $("raw").hidden = true;
  const fields = [], rows = [], results = [];
  if (model) {
    $("method").replaceChildren(...model.methods.map((name) => make("option", name)));
    $("method").value = model.usual;
    model.columns.forEach((column, i) => fields.push(field(column, i)));
    for (const column of model.columns) {
      const row = make("tr");
      const values = column.categories ? listed(column.categories) : "any";
      row.append(make("td", column.name), make("td", column.kind), make("td", `${values}${column.missing ? ", or missing" : ""}`));
      rows.push(row);
    }
    for (const output of model.outputs) {
      results.push(make("li", `${output.name}: ${output.kind}${output.classes ? ` for each of ${listed(output.classes)}` : ""}`));
    }
    $("hint").textContent = model.form === "record"
      ? "An empty field is sent as null: a missing value."
      : "The columns have no names: the values are sent as one row. An empty field is sent as null.";
  }
  $("fields").replaceChildren(make("legend", model?.form === "record" ? "Record" : "Row"), ...fields);
  $("schema").tBodies[0].replaceChildren(...rows);
  $("results").replaceChildren(...results);
}

function listed(values) {
  const shown = values.slice(0, 30).map((value) => (typeof value === "string" ? `“${value}”` : String(value))).join(", ");
  return values.length > 30 ? `${shown} … (${values.length})` : shown;
}

function field(column, i) {
  const place = make("p", undefined, { className: "field" });
  const label = make("label", column.name, { htmlFor: `column-${i}` });
  if (!column.categories) {
    const input = make("input", undefined, { id: `column-${i}`, autocomplete: "off", spellcheck: false });
    if (column.kind !== "text") input.inputMode = "decimal";
    place.append(label, input);
    return place;
  }
  const select = make("select", undefined, { id: `column-${i}` });
  column.categories.forEach((value, n) => select.append(make("option", value === "" ? "“”" : String(value), { value: String(n) })));
  select.append(make("option", "(missing)", { value: MISSING }), make("option", "(another value …)", { value: OTHER }));
  const input = make("input", undefined, { hidden: true, autocomplete: "off" });
  input.setAttribute("aria-label", `another value of ${column.name}`);
  select.addEventListener("change", () => {
    input.hidden = select.value !== OTHER;
    if (!input.hidden) input.focus();
  });
  place.append(label, select, input);
  return place;
}

function number(text, input, name) {
  const value = Number(text.replace(",", "."));
  if (text.trim() === "" || Number.isNaN(value)) {
    input.setAttribute("aria-invalid", "true");
    input.focus();
    throw new Error(`${name}: found “${text}”, expected a number.`);
  }
  return value;
}

function valueOf(column, i) {
  const element = $(`column-${i}`);
  const input = element.tagName === "SELECT" ? element.nextElementSibling : element;
  input.removeAttribute("aria-invalid");
  if (element.tagName === "SELECT") {
    if (element.value === MISSING) return null;
    if (element.value !== OTHER) return column.categories[Number(element.value)];
  }
  if (column.kind === "text") return input.value === "" && element === input ? null : input.value;
  return input.value.trim() === "" ? null : number(input.value, input, column.name);
}

async function send(event) {
  event.preventDefault();
  const model = chosen(), method = $("method").value;
  $("answer").replaceChildren();
  let body = "";
  try {
    const values = model.columns.map(valueOf);
    const rows = model.form === "record"
      ? { record: Object.fromEntries(model.columns.map((column, i) => [column.name, values[i]])) }
      : { rows: [model.form === "item" ? values[0] : values] };
    body = JSON.stringify(rows);
    const path = `v1/models/${encodeURIComponent(model.name)}/versions/${encodeURIComponent(model.version)}:${encodeURIComponent(method)}`;
    const begin = performance.now();
    const { found, text } = await ask(path, { method: "POST", headers: { "content-type": "application/json" }, body });
    const took = performance.now() - begin;
    $("answer").replaceChildren(...answer(found, took));
    $("raw").hidden = false;
    $("raw").lastElementChild.textContent = `POST /${path}\n${body}\n\n${text}`;
  } catch (error) {
    $("answer").replaceChildren(make("p", error.message, { className: "error" }));
    $("raw").hidden = !body;
    $("raw").lastElementChild.textContent = body;
  }
}

function answer(found, took) {
  const parts = [];
  for (let [name, value] of Object.entries(found.predictions)) {
    if (Array.isArray(value) && value.length === 1) [value] = value;
    if (Array.isArray(value) && found.classes?.length === value.length) {
      value = Object.fromEntries(value.map((each, i) => [String(found.classes[i]), each]));
    }
    const bars = value !== null && typeof value === "object" && !Array.isArray(value);
    const line = make("p", `${name}: `, { className: "result" });
    if (!bars) line.append(make("strong", typeof value === "string" ? value : JSON.stringify(value)));
    parts.push(line);
    if (bars) parts.push(barsOf(value, name.includes("proba") && !name.includes("log")));
  }
  parts.push(make("p", `Answered in ${took.toFixed(1)} ms, the browser's part included.`, { className: "quiet" }));
  return parts;
}

function barsOf(shares, drawn) {
  const grid = make("div", undefined, { className: "bars" });
  for (const [label, share] of Object.entries(shares)) {
    const bar = make("span", undefined, { className: drawn ? "bar" : "" });
    if (drawn) bar.style.width = `${100 * share}%`;
    grid.append(make("span", label), bar, make("span", typeof share === "number" ? share.toPrecision(5) : String(share), { className: "number" }));
  }
  return grid;
}

$("model").addEventListener("change", offerFields);
$("record").addEventListener("submit", send);
$("record").addEventListener("reset", (event) => { event.preventDefault(); offerFields(); });
$("access").addEventListener("submit", (event) => {
  event.preventDefault();
  token = $("token").value;
  $("access").hidden = true;
});
look();
