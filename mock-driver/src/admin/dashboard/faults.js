// Fault rules, troubles of the array, and scenarios.

import { change, get, part } from "./api.js";
import { field, make, say, sync, table, toggle } from "./dom.js";

const EXAMPLE = `{"id": "no-room", "match": {"method": "ControllerPublishVolume", "node": "node-0"},
 "action": {"code": "RESOURCE_EXHAUSTED", "message": "node-0 is full"}, "times": 3}`;

export function faults(panel, refresh) {
  const scenarios = make("ul", { class: "switches" });
  const rules = table("Fault rules, in the order in which they are asked", "On", "Rule", "From", ["Fired", "number"], ["Holds", "number"], "As written", ["", "acts"]);
  const troubles = table("Troubles of the array", "On", "Trouble", "From", ["Met", "number"], "As written", ["", "acts"]);
  const text = make("textarea", { rows: 4, spellcheck: false, placeholder: EXAMPLE });
  const add = async (path) => {
    if (await change("POST", path, text.value, "It is in force now")) { text.value = ""; refresh(); }
  };
  const reset = make("button", { type: "button", onclick: async () => {
    if (await change("POST", "/faults/reset", {}, "All counts are zero")) refresh();
  } }, "Reset counts");
  const seed = make("span", { class: "quiet push" });
  panel.append(
    make("h2", {}, "Rules"), rules.whole,
    make("div", { class: "bar" }, reset, seed),
    make("h2", {}, "Troubles"), troubles.whole,
    make("h2", {}, "Scenarios"), scenarios,
    make("h2", {}, "Break something else"),
    field("A rule or a trouble, as in the fault file but in JSON", text),
    make("div", { class: "bar" }, make("button", { type: "button", class: "main", onclick: () => add("/faults") }, "Add as rule"),
      make("button", { type: "button", onclick: () => add("/troubles") }, "Add as trouble")));

  return async () => {
    const [known, fault, trouble] = await Promise.all([get("/scenarios"), get("/faults"), get("/troubles")]);
    sync(scenarios, known, (scenario) => scenario.name, (scenario) => play(scenario, refresh));
    sync(rules.body, fault.rules, (rule) => rule.id, (rule) => ruleRow(rule, refresh));
    sync(troubles.body, trouble, (one) => one.id, (one) => troubleRow(one, refresh));
    say(rules.caption, fault.rules.length ? "Fault rules, in the order in which they are asked" : "No fault rule is in force.");
    say(troubles.caption, trouble.length ? "Troubles of the array" : "The array is in no trouble.");
    say(seed, `seed ${fault.seed}, state ${fault.state}`);
  };
}

function play(scenario, refresh) {
  const button = toggle(`Scenario ${scenario.name}`, async (enabled) => {
    const done = `${scenario.name} ${enabled ? "is played" : "has ended"}`;
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
  const holds = make("td", { class: "number" });
  const origin = make("td");
  const text = make("code");
  const release = make("button", { type: "button", "aria-label": `Release the calls that ${rule.id} holds`, onclick: async () => {
    if (await change("POST", `${path}/release`, {}, `${rule.id} let its calls go`)) refresh();
  } }, "Release");
  const line = make("tr", {}, make("td", {}, button), make("th", { scope: "row", class: "id" }, rule.id), origin, fired, holds,
    make("td", { class: "wide" }, text), make("td", { class: "acts" }, release, " ", remove));
  line.update = (now) => {
    button.set(now.enabled);
    say(origin, now.origin);
    say(fired, `${now.fired}${now.times === undefined ? "" : ` / ${now.times}`}`);
    fired.title = `${now.seen} calls came to it`;
    say(holds, now.holds);
    release.disabled = now.holds === 0;
    say(text, written(now.rule));
  };
  return line;
}

function troubleRow(trouble, refresh) {
  const { button, remove } = common("Trouble", `/troubles/${part(trouble.id)}`, trouble, refresh);
  const met = make("td", { class: "number" });
  const origin = make("td");
  const text = make("code");
  const line = make("tr", {}, make("td", {}, button), make("th", { scope: "row", class: "id" }, trouble.id), origin, met,
    make("td", { class: "wide" }, text), make("td", { class: "acts" }, remove));
  line.update = (now) => {
    button.set(now.enabled);
    say(origin, now.origin);
    say(met, now.met);
    say(text, written(now.trouble));
  };
  return line;
}
