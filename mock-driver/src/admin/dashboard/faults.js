// Fault rules, backend faults, and scenarios.

import { change, get, part } from "./api.js";
import { field, make, say, sync, table, toggle } from "./dom.js";

const EXAMPLE = `{"id": "no-room", "match": {"method": "ControllerPublishVolume", "node": "node-0"},
 "action": {"code": "RESOURCE_EXHAUSTED", "message": "node-0 is full"}, "times": 3}`;

export function faults(panel, refresh) {
  const scenarios = make("ul", { class: "switches" });
  const rules = table("Fault rules in evaluation order", "On", "Rule", "Origin", ["Fired", "number"], ["Blocks", "number"], "Definition", ["", "acts"]);
  const backendFaults = table("Backend faults", "On", "Backend fault", "Origin", ["Fired", "number"], "Definition", ["", "acts"]);
  const text = make("textarea", { rows: 4, spellcheck: false, placeholder: EXAMPLE });
  const add = async (path) => {
    if (await change("POST", path, text.value, "Added")) { text.value = ""; refresh(); }
  };
  const reset = make("button", { type: "button", onclick: async () => {
    if (await change("POST", "/faults/reset", {}, "Counters reset")) refresh();
  } }, "Reset counters");
  const seed = make("span", { class: "quiet push" });
  panel.append(
    make("h2", {}, "Rules"), rules.whole,
    make("div", { class: "bar" }, reset, seed),
    make("h2", {}, "Backend faults"), backendFaults.whole,
    make("h2", {}, "Scenarios"), scenarios,
    make("h2", {}, "Add a fault"),
    field("A rule or backend fault, as in the fault file but in JSON", text),
    make("div", { class: "bar" }, make("button", { type: "button", class: "main", onclick: () => add("/faults") }, "Add as rule"),
      make("button", { type: "button", onclick: () => add("/backend-faults") }, "Add as backend fault")));

  return async () => {
    const [known, fault, active] = await Promise.all([get("/scenarios"), get("/faults"), get("/backend-faults")]);
    sync(scenarios, known, (scenario) => scenario.name, (scenario) => play(scenario, refresh));
    sync(rules.body, fault.rules, (rule) => rule.id, (rule) => ruleRow(rule, refresh));
    sync(backendFaults.body, active, (one) => one.id, (one) => backendFaultRow(one, refresh));
    say(rules.caption, fault.rules.length ? "Fault rules in evaluation order" : "No fault rule is active.");
    say(backendFaults.caption, active.length ? "Backend faults" : "No backend fault is active.");
    say(seed, `seed ${fault.seed}, state ${fault.state}`);
  };
}

function play(scenario, refresh) {
  const button = toggle(`Scenario ${scenario.name}`, async (enabled) => {
    const done = `${scenario.name} ${enabled ? "started" : "stopped"}`;
    if (await change("PUT", `/scenarios/${part(scenario.name)}`, { enabled }, done)) refresh();
  });
  const line = make("li", {}, button, make("strong", {}, scenario.name), make("p", {}, scenario.about));
  line.update = (now) => button.set(now.enabled);
  return line;
}

function common(kind, path, thing, refresh) {
  const button = toggle(`${kind} ${thing.id}`, async (enabled) => {
    if (await change("PATCH", path, { enabled }, `${thing.id} is ${enabled ? "on" : "off"}`)) refresh();
  });
  const remove = make("button", { type: "button", class: "danger", "aria-label": `Remove ${thing.id}`, onclick: async () => {
    if (await change("DELETE", path, undefined, `Removed ${thing.id}`)) refresh();
  } }, "Remove");
  return { button, remove };
}

function written(value) {
  const { id, enabled, ...rest } = value;
  return JSON.stringify(rest);
}

function ruleRow(rule, refresh) {
  const path = `/faults/${part(rule.id)}`;
  const { button, remove } = common("Rule", path, rule, refresh);
  const fired = make("td", { class: "number" });
  const blocked = make("td", { class: "number" });
  const origin = make("td");
  const text = make("code");
  const release = make("button", { type: "button", "aria-label": `Release the calls that ${rule.id} blocks`, onclick: async () => {
    if (await change("POST", `${path}/release`, {}, `${rule.id} released its calls`)) refresh();
  } }, "Release");
  const line = make("tr", {}, make("td", {}, button), make("th", { scope: "row", class: "id" }, rule.id), origin, fired, blocked,
    make("td", { class: "wide" }, text), make("td", { class: "acts" }, release, " ", remove));
  line.update = (now) => {
    button.set(now.enabled);
    say(origin, now.origin);
    say(fired, `${now.fired}${now.times === undefined ? "" : ` / ${now.times}`}`);
    fired.title = `${now.seen} calls came to it`;
    say(blocked, now.blockedCalls);
    release.disabled = now.blockedCalls === 0;
    say(text, written(now.rule));
  };
  return line;
}

function backendFaultRow(fault, refresh) {
  const { button, remove } = common("Backend fault", `/backend-faults/${part(fault.id)}`, fault, refresh);
  const fired = make("td", { class: "number" });
  const origin = make("td");
  const text = make("code");
  const line = make("tr", {}, make("td", {}, button), make("th", { scope: "row", class: "id" }, fault.id), origin, fired,
    make("td", { class: "wide" }, text), make("td", { class: "acts" }, remove));
  line.update = (now) => {
    button.set(now.enabled);
    say(origin, now.origin);
    say(fired, now.fired);
    say(text, written(now.fault));
  };
  return line;
}
