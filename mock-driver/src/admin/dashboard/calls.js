// The journal: ended calls, filtered, with their messages.

import { change, get, query } from "./api.js";
import { dress, Expanded, field, make, say, span, table, tone } from "./dom.js";
import { Pager } from "./pager.js";
import { CODES } from "./words.js";

const PAGE = 50;
export function calls(panel, refresh) {
  const pager = new Pager("calls", () => ask());
  // Without Live the calls on show stay until the user asks for others: rows that move away under the eye cannot be read.
  let stale = true;
  const ask = () => { stale = true; refresh(); };
  const again = () => { pager.reset(); ask(); };
  const input = () => make("input", { type: "search", autocomplete: "off", oninput: again });
  const [method, volume, node, fault] = [input(), input(), input(), input()];
  const code = make("select", { onchange: again }, make("option", { value: "" }, "any"), make("option", { value: "!OK" }, "errors"),
    ...CODES.map((name) => make("option", { value: name }, name)));
  const live = make("input", { type: "checkbox", checked: true, onchange: refresh });
  const clear = make("button", { type: "button", onclick: async () => {
    if (await change("DELETE", "/journal", undefined, "Journal cleared")) again();
  } }, "Clear journal");
  const list = table("Calls, the newest first", "Time", "Method", "Volume", "Node", "Code", ["Took", "number"], "Fault", ["", "acts"]);
  for (const pattern of [volume, node, fault]) pattern.placeholder = "pattern";
  method.placeholder = "whole name";
  panel.append(
    make("div", { class: "bar" }, field("Method", method, "grow"), field("Code", code), field("Volume", volume, "short"), field("Node", node, "short"), field("Fault", fault, "short")),
    make("div", { class: "bar" }, make("label", { class: "inline" }, live, "Live"), clear, pager.whole), list.whole);

  const expanded = new Expanded(8, () => show());
  let shown;
  const load = async () => {
    stale = false;
    const wanted = { method: method.value.trim(), code: code.value, volume: volume.value, node: node.value, fault: fault.value };
    try {
      shown = await get(`/journal${query({ ...wanted, before: pager.after, newest: true, limit: PAGE })}`);
    } catch (error) {
      stale = true;
      throw error;
    }
    pager.update(shown);
  };
  const show = () => expanded.sync(list.body, shown.items, keyOf, (call) => line(call, list, expanded), detail);
  return async () => {
    if (stale || (live.checked && pager.cursors.length === 0)) await load();
    show();
  };
}

/** Identifies a call: the number alone is not unique, since a restarted driver counts from 1. */
export const keyOf = (call) => `${call.number} ${call.start}`;

function line(call, list, expanded) {
  const code = make("span", { class: `badge ${tone(call.answer.code)}`, title: call.answer.message }, call.answer.code);
  const late = make("span", { class: "quiet" });
  const time = make("span", { title: call.start }, call.start.slice(11, 23));
  const row = list.row(["number time", time], call.method, ["id", call.volume], ["id", call.node], ["", code, " ", late],
    ["number", span(call.answer.seconds)], ["id", call.fault ?? ""], ["acts", expanded.button(keyOf(call), `More about call ${call.number}`)]);
  row.update = (now) => say(late, now.late ? `later ${now.late.code}` : "");
  return row;
}

function detail(call) {
  const text = (value) => make("pre", { tabIndex: 0 }, value === undefined ? "none" : JSON.stringify(value, null, 2));
  const peer = call.peer ? `process ${call.peer.pid ?? "?"} of user ${call.peer.uid}` : "an unknown process";
  const words = `Call ${call.number}, ${call.path}, from ${peer}. ${call.answer.message}`;
  return make("div", {}, make("p", {}, words), make("div", { class: "pair" },
    make("div", {}, make("h2", {}, "Request"), text(call.request)), make("div", {}, make("h2", {}, "Response"), text(call.response))));
}

/** A call in the list of running ones or of errors. */
export function item(call) {
  const time = make("span", { class: "number" });
  const about = make("span", { class: "quiet id" });
  const what = make("span");
  const element = make("li", {}, make("div", { class: "row" }, make("strong", {}, call.method), time), about, make("div", {}, what));
  element.update = (now) => {
    say(about, [now.volume, now.node].filter(Boolean).join(" → "));
    if (now.answer) {
      dress(element, "bad");
      say(time, now.answer.end.slice(11, 19));
      say(what, `${now.answer.code}: ${now.answer.message}`);
    } else {
      element.dataset.start = now.start;
      dress(element, now.fault ? "held" : "");
      say(what, now.fault ? `blocked by ${now.fault}` : "");
      tick(element);
    }
  };
  return element;
}

/** Shows how long a running call has taken. */
export function tick(element) {
  const since = (Date.now() - Date.parse(element.dataset.start)) / 1000;
  say(element.querySelector(".number"), span(Math.max(0, since)));
}
