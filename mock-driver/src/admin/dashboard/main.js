// The page: which panel is shown, and when it is redrawn.

import { announce, get, query } from "./api.js";
import { calls, item, keyOf, tick } from "./calls.js";
import { capabilities } from "./capabilities.js";
import { dress, make, say, sync } from "./dom.js";
import { faults } from "./faults.js";
import { nodes } from "./nodes.js";
import { snapshots } from "./snapshots.js";
import { storage } from "./storage.js";
import { volumes } from "./volumes.js";

const COUNTS = [["volumes", "Volumes"], ["nodes", "Nodes"], ["attachments", "Attached"], ["snapshots", "Snapshots"],
  ["running", "In flight"], ["calls", "Calls"], ["failed", "Failed"], ["faults", "Fault rules"]];
const MOST_RUNNING = 50;
const LATEST_ERRORS = 8;

const byId = (id) => document.getElementById(id);
const panels = {};
for (const [name, build] of Object.entries({ nodes, volumes, snapshots, storage, calls, faults, capabilities })) {
  panels[name] = build(byId(`panel-${name}`), draw);
}

// What a process without an array has.
const OF_PROCESS = ["calls", "faults", "capabilities"];
const OF_ARRAY = ["volumes", "nodes", "attachments", "snapshots"];

let current;
let hasArray = true;
let drawing = false;
let wanted = false;

/** Draws what is shown; once at a time, and once more if something changed meanwhile. */
async function draw() {
  wanted = true;
  if (drawing || !current) return;
  drawing = true;
  while (wanted) {
    wanted = false;
    try {
      await Promise.all([panels[current]({ hasArray }), beside()]);
    } catch (error) {
      announce("failed", error.message);
    }
  }
  drawing = false;
}

async function beside() {
  const [running, errors] = await Promise.all([
    get("/calls"),
    get(`/journal${query({ code: "!OK", newest: true, messages: false, limit: LATEST_ERRORS })}`),
  ]);
  sync(byId("running"), running.slice(0, MOST_RUNNING), keyOf, item);
  sync(byId("errors"), errors.items, keyOf, item);
  say(byId("running-count"), running.length);
  say(byId("running-none"), running.length > MOST_RUNNING ? `and ${running.length - MOST_RUNNING} more` : "No call is running.");
  byId("running-none").hidden = running.length > 0 && running.length <= MOST_RUNNING;
  byId("errors-none").hidden = errors.items.length > 0;
}

function count(counts) {
  const shown = COUNTS.filter(([key]) => hasArray || !OF_ARRAY.includes(key)).map(([key, label]) => ({ key, label, number: counts[key] }));
  sync(byId("counts"), shown, ({ key }) => key, ({ label }) => {
    const value = make("dd");
    const box = make("div", {}, make("dt", {}, label), value);
    box.update = ({ key, number }) => {
      say(value, number.toLocaleString("en"));
      dress(box, number > 0 ? { failed: "bad", running: "busy" }[key] ?? "" : "");
    };
    return box;
  });
}

// === tabs ===

const tabs = [...document.querySelectorAll('[role="tab"]')];
const nameOf = (tab) => tab.id.slice(4);

function show(name, focus = false) {
  const offered = tabs.filter((tab) => !tab.hidden).map(nameOf);
  if (!offered.includes(name)) [name] = offered;
  current = name;
  for (const tab of tabs) {
    const chosen = tab.id === `tab-${name}`;
    tab.setAttribute("aria-selected", String(chosen));
    tab.tabIndex = chosen ? 0 : -1;
    if (chosen && focus) tab.focus();
  }
  for (const panel of document.querySelectorAll('[role="tabpanel"]')) panel.hidden = panel.id !== `panel-${name}`;
  if (location.hash !== `#${name}`) history.replaceState(null, "", `#${name}`);
  draw();
}

for (const tab of tabs) {
  tab.addEventListener("click", () => show(nameOf(tab)));
  tab.addEventListener("keydown", (event) => {
    const offered = tabs.filter((other) => !other.hidden);
    const index = offered.indexOf(tab);
    const to = { ArrowRight: index + 1, ArrowLeft: index - 1, Home: 0, End: offered.length - 1 }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    show(nameOf(offered.at(to % offered.length)), true);
  });
}
addEventListener("hashchange", () => show(location.hash.slice(1)));

// It leads to what is shown; as a link it would name a panel that there is not.
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  byId("panels").focus();
});

// === what changes ===

function link(state, text) {
  byId("link").dataset.state = state;
  say(byId("link"), text);
}

/** Shows the driver's name and version: after a reconnect it may be another driver. */
async function introduce() {
  try {
    const info = await get("/info");
    document.title = `${info.driver} – CSI mock driver`;
    say(byId("driver"), info.driver);
    say(byId("about"), `CSI mock driver ${info.version}${info.node ? ` on ${info.node}` : ""}, up since ${info.started.slice(0, 19).replace("T", " ")} UTC`);
    ({ hasArray } = info);
    for (const tab of tabs) tab.hidden = !hasArray && !OF_PROCESS.includes(nameOf(tab));
    count(info.counts);
  } catch (error) {
    announce("failed", error.message);
  }
  show(current ?? location.hash.slice(1));
}

const changes = new EventSource("/api/v1/changes");
changes.addEventListener("open", () => { link("live", "live"); introduce(); });
changes.addEventListener("error", () => link("lost", "not reached, trying again"));
changes.addEventListener("changed", (event) => {
  count(JSON.parse(event.data).counts);
  draw();
});

setInterval(() => {
  for (const call of byId("running").children) tick(call);
}, 250);
