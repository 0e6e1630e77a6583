// The journal: ended calls, filtered, with their messages.

import { change, get, query } from "./api.js";
import { dress, field, make, say, span, sync, table, tone } from "./dom.js";
import { Pager } from "./pager.js";

const PAGE = 50;
const CODES = ["OK", "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND", "ALREADY_EXISTS", "PERMISSION_DENIED",
  "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "ABORTED", "OUT_OF_RANGE", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS", "UNAUTHENTICATED"];

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
  for (const pattern of [volume, node, fault]) pattern.placeholder = "* and ? allowed";
  method.placeholder = "whole name";
  panel.append(
    make("div", { class: "bar" }, field("Method", method, "grow"), field("Code", code), field("Volume", volume), field("Node", node), field("Fault", fault)),
    make("div", { class: "bar" }, make("label", { class: "inline" }, live, "Live"), clear, pager.whole), list.whole);

  const open = new Set();
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
  const flip = (key) => { open.has(key) ? open.delete(key) : open.add(key); show(); };
  const show = () => {
    const rows = shown.items.flatMap((call) => open.has(keyOf(call)) ? [{ call }, { call, detail: true }] : [{ call }]);
    sync(list.body, rows, (row) => `${keyOf(row.call)}${row.detail ? " messages" : ""}`, (row) => row.detail ? detail(row.call) : line(row.call, flip, open));
  };
  return async () => {
    if (stale || (live.checked && pager.cursors.length === 0)) await load();
    show();
  };
}

/** Identifies a call: the number alone is not unique, since a restarted driver counts from 1. */
export const keyOf = (call) => `${call.number} ${call.start}`;

function line(call, flip, open) {
  const key = keyOf(call);
  const code = make("span", { class: `badge ${tone(call.answer.code)}`, title: call.answer.message }, call.answer.code);
  const late = make("span", { class: "quiet" });
  const more = make("button", { type: "button", "aria-label": `Messages of call ${call.number}`, onclick: () => flip(key) });
  const row = make("tr", {},
    make("td", { class: "number time", title: call.start }, call.start.slice(11, 23)), make("th", { scope: "row" }, call.method),
    make("td", { class: "id" }, call.volume), make("td", { class: "id" }, call.node), make("td", {}, code, " ", late),
    make("td", { class: "number" }, span(call.answer.seconds)), make("td", { class: "id" }, call.fault ?? ""), make("td", { class: "acts" }, more));
  row.update = ({ call: now }) => {
    say(late, now.late ? `later ${now.late.code}` : "");
    more.setAttribute("aria-expanded", String(open.has(key)));
    say(more, open.has(key) ? "Less" : "More");
  };
  return row;
}

function detail(call) {
  const text = (value) => make("pre", { tabIndex: 0 }, value === undefined ? "none" : JSON.stringify(value, null, 2));
  const peer = call.peer ? `process ${call.peer.pid ?? "?"} of user ${call.peer.uid}` : "an unknown process";
  const words = `Call ${call.number}, ${call.path}, from ${peer}. ${call.answer.message}`;
  return make("tr", { class: "detail" }, make("td", { colspan: "8" }, make("p", {}, words),
    make("div", { class: "pair" }, make("div", {}, make("h2", {}, "Request"), text(call.request)), make("div", {}, make("h2", {}, "Response"), text(call.response)))));
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
