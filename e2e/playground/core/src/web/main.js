// Draws the snapshots of the playground and sends its actions.

import { announce, change, get } from "/dashboard/api.js";
import { dress, make, say, sync, table } from "/dashboard/dom.js";
import { drawPath, stateOf } from "/playground/path.js";

const LONGEST_TIMELINE = 200;
const byId = (id) => document.getElementById(id);
const list = (items) => items.join(" ") || "–";

/** A text with its control and format characters made visible. */
const visible = (text) => String(text).replace(/[\p{Cc}\p{Cf}]/gu, (c) => `\\u{${c.codePointAt(0).toString(16)}}`);

const PANELS = [
  ["pods", "Pods", ["name", "node", "phase", "volumes", "waits because"], (snapshot) => snapshot.pods.map((pod) => [
    pod.name, pod.node || "–", [pod.phase, { Running: "good", Failed: "bad" }[pod.phase] ?? "warn"], list(pod.volumes), pod.reason])],
  ["nodes", "Nodes", ["name", "state", "in use", "attached"], (snapshot) => snapshot.nodes.map((node) => [
    node.name, node.outOfService ? ["out of service", "bad"] : node.ready ? ["Ready", "good"] : ["NotReady", "bad"],
    list(node.inUse), list(node.attached)])],
  ["attachments", "VolumeAttachments", ["volume", "node", "state", "error"], (snapshot) => snapshot.attachments.map((item) => [
    item.volume, item.node, item.deleting ? ["detaching", "warn"] : item.attached ? ["attached", "good"] : ["attaching", "warn"],
    item.error || (stateOf(item, snapshot).tone === "bad" ? stateOf(item, snapshot).text : "")])],
  ["worlds", "Desired and actual state of world", ["volume", "node", "desired by", "actual", "operation"],
    (snapshot) => snapshot.worlds?.map(world) ?? "Only the embedded cluster shows them."],
  ["lanes", "Attacher: lanes", ["lane", "running", "queued", "backoff"], (snapshot) => snapshot.lanes?.map((lane) => [
    lane.lane, `${lane.running}/${lane.limit}`, lane.ready, lane.waiting ? [lane.waiting, "bad"] : lane.waiting])
    ?? (snapshot.hasReplicas ? "Not shown with several attachers." : "The attacher does not respond.")],
  ["array", "Array: published volumes", ["node", "volumes"], (snapshot) => snapshot.array?.map((row) => [
    row.node, list(row.volumes)]) ?? "The driver does not respond."],
];

function world(item) {
  const agrees = (item.desiredBy.length === 0) === (item.actual === null);
  const tone = item.actual === "uncertain" ? "bad" : item.pending || !agrees ? "warn" : "good";
  return [item.volume, item.node, list(item.desiredBy), [`${item.actual ?? "–"}${item.inUse ? ", in use" : ""}`, tone],
    item.pending ? ["pending", "warn"] : "–"];
}

// === tables ===

/** A row; a cell is its text or [text, tone]. */
function row({ cells }) {
  const spans = cells.map(() => make("span"));
  const element = make("tr", {}, ...spans.map((span, index) => make(index ? "td" : "th", index ? {} : { scope: "row" }, span)));
  element.update = (item) => item.cells.forEach((cell, index) => {
    const [text, tone] = [cell].flat();
    say(spans[index], visible(text));
    dress(spans[index], tone ? `badge ${tone}` : "");
  });
  return element;
}

/** Rows with keys that differ: equal ones are numbered. */
function keyed(rows, keyOf) {
  const seen = new Map();
  return rows.map((cells) => {
    const key = keyOf(cells);
    seen.set(key, (seen.get(key) ?? 0) + 1);
    return { key: `${key} ${seen.get(key)}`, cells };
  });
}

const draws = PANELS.map(([id, title, columns, rowsOf]) => {
  const { whole, body } = table(title, ...columns);
  const none = make("p", { class: "quiet" });
  byId("panels").append(make("section", { id: `panel-${id}` }, whole, none));
  const width = { worlds: 2, attachments: 2 }[id] ?? 1;
  return (snapshot) => {
    const rows = rowsOf(snapshot);
    const missing = typeof rows === "string";
    sync(body, missing ? [] : keyed(rows, (cells) => cells.slice(0, width).join(" ")), (item) => item.key, row);
    none.hidden = !missing && rows.length > 0;
    say(none, missing ? rows : "None.");
  };
});

// === timeline ===

const timeline = table("", "time", "component", "event");
byId("timeline").append(timeline.whole);
let chosen;
let latest;

function drawTimeline(snapshot) {
  if (!snapshot.volumes.includes(chosen)) chosen = snapshot.volumes[0];
  sync(byId("volumes"), snapshot.volumes, (name) => name, (name) => {
    const input = make("input", { type: "radio", name: "volume", value: name, onchange: () => { chosen = name; draw(latest); } });
    const label = make("label", { class: "inline" }, input, visible(name));
    label.update = () => { input.checked = name === chosen; };
    return label;
  });
  say(timeline.caption, chosen === undefined ? "No volume" : `Volume ${visible(chosen)}`);
  const rows = snapshot.timeline.filter(({ volumes }) => volumes.length === 0 || volumes.includes(chosen))
    .map(({ at, actor, text }) => [`${at.toFixed(2)} s`, actor, text]);
  sync(timeline.body, keyed(rows, (cells) => cells.join(" ")).slice(-LONGEST_TIMELINE).reverse(), (item) => item.key, row);
}

// === actions ===

let actions = [];

async function offerActions() {
  try {
    actions = await get("/actions");
  } catch (error) {
    announce("failed", error.message);
  }
  byId("faults").querySelector("label").hidden = actions.length === 0;
  sync(byId("actions"), actions, ({ key }) => key, ({ key, label, verb, undo, help, isToggle }) => {
    const does = make("span", {}, verb);
    const button = make("button", {
      type: "button", title: help, "aria-keyshortcuts": key, onclick: () => change("POST", `/actions/${key}`, {}, `Requested: ${does.textContent}`),
    }, make("kbd", { "aria-hidden": "true" }, key), " ", does);
    button.set = (broken) => {
      if (!isToggle) return;
      const isActive = broken.includes(label);
      button.dataset.active = isActive;
      say(does, isActive ? undo : verb);
    };
    return button;
  });
  if (latest) draw(latest);
}

document.addEventListener("keydown", (event) => {
  if (!byId("shortcuts").checked || event.repeat || event.ctrlKey || event.altKey || event.metaKey) return;
  if (actions.some(({ key }) => key === event.key)) byId("actions").querySelector(`[data-key="${event.key}"]`).click();
  else if (event.key === "e") byId("explain").click();
  else if (event.key === "Escape") showExplanation(false);
});

document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  byId("panels").focus();
});

// === pace ===

byId("step").addEventListener("click", () => change("POST", "/pace/step", {}, latest?.isPaused ? "Next step" : "Paused"));
byId("resume").addEventListener("click", () => change("POST", "/pace/resume", {}, "Continued"));

function drawPace({ isPaused }) {
  say(byId("step"), isPaused ? "Next step" : "Pause");
  byId("resume").hidden = !isPaused;
}

// === explanation ===

const EXPLAIN_AGAIN = 1000;
let isExplaining = false;

async function explain() {
  if (isExplaining || byId("explanation").hidden) return;
  isExplaining = true;
  try {
    const response = await fetch("/api/v1/explain");
    say(byId("explained"), (await response.text()).split("\n").map(visible).join("\n"));
  } catch (error) {
    say(byId("explained"), `The playground does not respond: ${error.message}`);
  }
  isExplaining = false;
}

function showExplanation(isShown) {
  byId("explanation").hidden = !isShown;
  byId("explain").setAttribute("aria-expanded", String(isShown));
  say(byId("explained"), "Reading the cluster.");
  explain();
}

byId("explain").addEventListener("click", () => showExplanation(byId("explanation").hidden));
setInterval(explain, EXPLAIN_AGAIN);

// === snapshots ===

function draw(snapshot) {
  latest = snapshot;
  say(byId("about"), `The attach/detach path, live for ${Math.floor(snapshot.elapsed)} s`);
  say(byId("chapter"), visible(snapshot.chapter));
  say(byId("notice"), visible(snapshot.notice));
  say(byId("kubeconfig"), `export KUBECONFIG=${visible(snapshot.kubeconfig)}`);
  say(byId("explain-command"), visible(snapshot.explainCommand));
  say(byId("names"), visible(snapshot.names));
  const active = snapshot.broken.length ? snapshot.broken : ["no faults active"];
  sync(byId("active"), active, (label) => label, (label) =>
    make("span", { class: `badge ${snapshot.broken.length ? "bad" : "good"}` }, label));
  for (const button of byId("actions").children) button.set(snapshot.broken);
  for (const drawPanel of draws) drawPanel(snapshot);
  drawPace(snapshot);
  drawPath(byId("path"), snapshot, visible);
  drawTimeline(snapshot);
}

addEventListener("resize", () => { if (latest) draw(latest); });

function link(state, text) {
  byId("link").dataset.state = state;
  say(byId("link"), text);
}

const changes = new EventSource("/api/v1/changes");
changes.addEventListener("open", () => { link("live", "live"); offerActions(); });
changes.addEventListener("error", () => link("lost", "no connection, retrying"));
changes.addEventListener("changed", (event) => draw(JSON.parse(event.data)));
