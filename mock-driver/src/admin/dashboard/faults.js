// Fault rules, backend faults, and scenarios.

import { change, get, part } from "./api.js";
import { Expanded, leave, make, say, sync, table, toggle } from "./dom.js";
import { faultForm } from "./fault-form.js";
import { backendFaultSentence, backendFaultYaml, ruleSentence, ruleYaml } from "./sentence.js";

export function faults(panel, refresh) {
  const scenarios = make("ul", { class: "switches" });
  const rules = table("Fault rules in evaluation order", "On", "Rule", "Effect", "Origin", ["Fired", "number"], ["", "acts"]);
  const backendFaults = table("Backend faults", "On", "Backend fault", "Effect", "Origin", ["Fired", "number"], ["", "acts"]);
  const expanded = [new Expanded(6, refresh), new Expanded(6, refresh)];
  const form = faultForm(refresh);
  const reset = make("button", { type: "button", onclick: async () => {
    if (await change("POST", "/faults/reset", {}, "Counters reset")) refresh();
  } }, "Reset counters");
  const seed = make("span", { class: "quiet push" });
  panel.append(form,
    make("h2", {}, "Rules"), rules.whole, make("div", { class: "bar" }, reset, seed),
    make("h2", {}, "Backend faults"), backendFaults.whole,
    make("h2", {}, "Scenarios"), scenarios);

  return async ({ hasArray }) => {
    const [known, fault, active] = await Promise.all([get("/scenarios"), get("/faults"), get("/backend-faults")]);
    form.update([...fault.rules, ...active].map((one) => one.id), hasArray);
    sync(scenarios, known, (scenario) => scenario.name, (scenario) => play(scenario, refresh));
    expanded[0].sync(rules.body, fault.rules, (rule) => rule.id, (rule) => ruleRow(rule, rules, expanded[0], refresh), () => yaml((now) => ruleYaml(now.rule)));
    expanded[1].sync(backendFaults.body, active, (one) => one.id, (one) => backendFaultRow(one, backendFaults, expanded[1], refresh), () => yaml((now) => backendFaultYaml(now.fault)));
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

/** The YAML behind a sentence. */
function yaml(write) {
  const text = make("pre", { tabIndex: 0 });
  text.update = (now) => say(text, write(now));
  return text;
}

function common(kind, path, { id }, expanded, refresh) {
  const button = toggle(`${kind} ${id}`, async (enabled) => {
    if (await change("PATCH", path, { enabled }, `${id} is ${enabled ? "on" : "off"}`)) refresh();
  });
  const remove = make("button", { type: "button", class: "danger", "aria-label": `Remove ${id}`, onclick: async () => {
    if (await change("DELETE", path, undefined, `Removed ${id}`)) refresh();
  } }, "Remove");
  return { button, remove, more: expanded.button(id, `YAML of ${id}`, "YAML "), effect: make("span"), origin: make("span"), fired: make("span") };
}

function ruleRow(rule, list, expanded, refresh) {
  const path = `/faults/${part(rule.id)}`;
  const { button, remove, more, effect, origin, fired } = common("Rule", path, rule, expanded, refresh);
  const release = make("button", { type: "button", onclick: async () => {
    if (await change("POST", `${path}/release`, {}, `${rule.id} released its calls`)) refresh();
  } });
  const line = list.row(button, ["id", rule.id], ["sentence", effect], origin, ["number", fired], ["acts", release, " ", more, " ", remove]);
  line.update = (now) => {
    button.set(now.enabled);
    say(effect, ruleSentence(now.rule));
    say(origin, now.origin);
    say(fired, `${now.fired}${now.times === undefined ? "" : ` / ${now.times}`}`);
    fired.title = `${now.seen} calls came to it`;
    say(release, `Release ${now.blockedCalls}`);
    release.setAttribute("aria-label", `Release ${now.blockedCalls} calls that ${now.id} blocks`);
    if (now.blockedCalls === 0) leave(release);
    release.hidden = now.blockedCalls === 0;
  };
  return line;
}

function backendFaultRow(fault, list, expanded, refresh) {
  const { button, remove, more, effect, origin, fired } = common("Backend fault", `/backend-faults/${part(fault.id)}`, fault, expanded, refresh);
  const line = list.row(button, ["id", fault.id], ["sentence", effect], origin, ["number", fired], ["acts", more, " ", remove]);
  line.update = (now) => {
    button.set(now.enabled);
    say(effect, backendFaultSentence(now.fault));
    say(origin, now.origin);
    say(fired, now.fired);
  };
  return line;
}
