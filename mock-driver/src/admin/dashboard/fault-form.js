// The form that adds a fault. It writes YAML, which the driver checks while one types.

import { change, send } from "./api.js";
import { dress, field, make, say } from "./dom.js";
import { BACKEND_FAULTS, backendFaultSentence, backendFaultYaml, ruleSentence, ruleYaml } from "./sentence.js";
import { CODES, METHODS } from "./words.js";

const PAUSE = 150;

/** What a rule can do to a call: its label, the fields of the form that it has, and what they become. */
const ACTIONS = {
  fail: { label: "fails with", fields: ["code", "message"], phases: ["before", "after", "background"], action: ({ code, message }) => ({ code, message }) },
  pretend: { label: "pretends to return", fields: ["answer"], phases: ["before"], action: ({ answer }) => ({ pretend: answer }) },
  delay: { label: "waits for", fields: ["time"], phases: ["before", "after", "background"], action: ({ time }) => ({ delay: time }) },
  hang: { label: "hangs until released", fields: [], phases: ["before", "after", "background"], action: () => ({ hang: "release" }) },
  lost: { label: "hangs until the client cancels", fields: [], phases: ["before", "after"], action: () => ({ hang: "client-cancel" }) },
  drop: { label: "loses its connection", fields: [], phases: ["before", "after"], action: () => ({ "drop-connection": true }) },
  away: { label: "removes the socket for", fields: ["time"], phases: ["before", "after"], action: ({ time }) => ({ "socket-away": time }) },
  kill: { label: "kills the driver", fields: [], phases: ["before", "after"], action: () => ({ exit: "kill" }) },
};
/** What a rule can do to the I/O on a volume. */
const IO_ACTIONS = {
  errno: { label: "fails with", fields: ["errno"], action: ({ errno }) => ({ errno }) },
  delay: { label: "waits for", fields: ["time"], action: ({ time }) => ({ delay: time }) },
  hang: { label: "hangs until released", fields: [], action: () => ({ hang: "release" }) },
  bandwidth: { label: "shares bytes per second", fields: ["rate"], action: ({ rate }) => ({ bandwidth: rate }) },
  torn: { label: "is torn after bytes", fields: ["kept"], action: ({ kept }) => ({ torn: kept }) },
  lose: { label: "loses what was not synced", fields: [], action: () => ({ "lose-unsynced": true }) },
};
const OPERATIONS = ["*", "read", "write", "fsync", "create", "stat", "detach"];
const ERRORS = ["EIO", "ENOSPC", "EDQUOT", "EROFS", "ENODEV", "ETIMEDOUT"];
const PHASES = { before: "in place of its effect", after: "after its effect", background: "at once, its effect follows" };
const CHOICES = { all: "every one", call: "only number", every: "every nth", probability: "by chance, percent" };
const NUMBERS = ["limit", "volumes", "bytes", "per-second", "burst"];
const EXAMPLES = { time: "2s", age: "30s", for: "10s", device: "/dev/sdz", limit: "3", volumes: "10", bytes: "1Gi", "per-second": "5", burst: "5", rate: "1Mi", kept: "512" };
const DATA = ["unknown", "btrfs", "luks", "lvm", "partitions", "swap"];

const options = (names) => names.map(([value, text]) => make("option", { value }, text));
const same = (names) => names.map((name) => [name, name]);
const given = (entries) => Object.fromEntries(Object.entries(entries).filter(([, value]) => value !== "" && value !== undefined));

/**
 * Builds the form, whose input only the driver validates. `added` is called after each fault that was added; `update` of the
 * result takes the ids in use and whether the driver has an array.
 */
export function faultForm(added) {
  const inputs = {};
  const fields = {};
  const put = (name, label, input, style) => {
    inputs[name] = input;
    input.addEventListener(input.tagName === "SELECT" ? "change" : "input", () => write());
    fields[name] = field(label, input, style);
    return fields[name];
  };
  const text = (name, label, properties = {}) => put(name, label, make("input", { autocomplete: "off", spellcheck: false, ...properties }), "short");
  const select = (name, label, names) => put(name, label, make("select", {}, ...options(names)));
  const pattern = { placeholder: "* or any" };

  const methods = make("datalist", { id: "methods" }, ...METHODS.map((value) => make("option", { value })));
  const first = make("div", { class: "bar" },
    select("kind", "Fault of", [["rule", "calls"], ["io", "I/O on volumes"], ["backend-fault", "the array"]]),
    select("type", "Type", same(Object.keys(BACKEND_FAULTS))),
    text("method", "Method", { list: "methods", value: "ControllerPublishVolume", placeholder: "* for all" }), methods,
    select("io", "Operation", same(OPERATIONS)),
    text("volume", "Volume", pattern), text("node", "Node", pattern), text("path", "File", pattern),
    select("choice", "Which calls", Object.entries(CHOICES)), text("number", "Number", { type: "number", min: "1", value: "2" }));
  fields.method.className = "grow";
  const second = make("div", { class: "bar" },
    select("act", "The call", Object.entries(ACTIONS).map(([name, { label }]) => [name, label])),
    select("ioAct", "The I/O", Object.entries(IO_ACTIONS).map(([name, { label }]) => [name, label])), select("errno", "Error", same(ERRORS)),
    ...[["rate", "Bytes per second"], ["kept", "Bytes"]].map(([name, label]) => text(name, label, { placeholder: EXAMPLES[name] })),
    select("code", "Code", [["", "default"], ...same(CODES.slice(1))]), select("answer", "Code", same(CODES)),
    text("message", "Message", { placeholder: "default" }), text("time", "Time", { placeholder: EXAMPLES.time }), select("phase", "When", Object.entries(PHASES)),
    text("times", "At most", { type: "number", min: "1", placeholder: "no limit" }),
    ...["limit", "volumes", "bytes", "per-second", "burst", "age", "for", "device"].map((name) => text(name, name, { placeholder: EXAMPLES[name] })),
    select("data", "Data", same(DATA)), text("id", "Id"));
  fields.message.className = "grow";

  const yaml = make("textarea", { rows: 4, spellcheck: false, id: "fault-yaml", "aria-describedby": "fault-check", oninput: () => { typed = true; written = ""; check(); } });
  const sentence = make("p", {});
  const verdict = make("p", { id: "fault-check", role: "status" });
  const add = make("button", { class: "main" }, "Add");
  const form = make("form", { class: "fault", "aria-labelledby": "fault-title", noValidate: true, onsubmit: async (event) => {
    event.preventDefault();
    const sent = yaml.value;
    if (!await change("POST", "/scripts", sent, "Added")) return;
    // What was typed meanwhile is for the next fault.
    if (yaml.value === sent) { inputs.id.value = ""; write(); }
    added();
  } }, make("h2", { id: "fault-title" }, "Add a fault"), first, second, sentence,
  field("As in a fault file; changes of the fields above write it again", yaml), make("div", { class: "bar" }, add, verdict));

  let used;
  let typed = false;
  // The sentence of what the fields wrote.
  let written = "";
  const freeId = () => {
    for (let number = 1; ; number += 1) if (!(used ?? []).includes(`fault-${number}`)) return `fault-${number}`;
  };

  /** The fault of the fields. */
  function fault() {
    const value = (name) => inputs[name].value.trim();
    const id = value("id") || freeId();
    if (value("kind") === "backend-fault") {
      const own = BACKEND_FAULTS[value("type")].fields.map((name) => {
        const entered = value(name);
        return [name, entered && NUMBERS.includes(name) && Number.isFinite(Number(entered)) ? Number(entered) : entered];
      });
      return { id, type: value("type"), ...given(Object.fromEntries(own)) };
    }
    const number = Number(value("number"));
    const chosen = { call: { call: number }, every: { every: number }, probability: { probability: number / 100 } }[value("choice")];
    const times = value("times");
    const limit = { times: times ? Number(times) : undefined };
    if (value("kind") === "io") {
      const { fields: own, action } = IO_ACTIONS[value("ioAct")];
      const entered = Object.fromEntries(own.map((name) => [name, value(name) || EXAMPLES[name]]));
      return given({ id, match: given({ io: value("io"), volume: value("volume"), node: value("node"), path: value("path"), ...chosen }), action: action(entered), ...limit });
    }
    const match = given({ method: value("method") || "*", volume: value("volume"), node: value("node"), ...chosen });
    const { fields: own, phases, action } = ACTIONS[value("act")];
    const phase = phases.includes(value("phase")) ? value("phase") : phases[0];
    const entered = given(Object.fromEntries(own.map((name) => [name, value(name)])));
    return given({ id, match, phase: phase === "before" ? undefined : phase,
      action: { ...given(action(entered)), ...(phase === "background" && own.includes("code") ? { delay: value("time") || EXAMPLES.time } : {}) }, ...limit });
  }

  function arrange() {
    const array = inputs.kind.value === "backend-fault";
    const { fields: own, phases } = ACTIONS[inputs.act.value];
    const inBackground = inputs.phase.value === "background" && own.includes("code");
    const numbered = inputs.choice.value === "all" ? [] : ["number"];
    const shown = array ? ["type", ...BACKEND_FAULTS[inputs.type.value].fields]
      : inputs.kind.value === "io" ? ["io", "volume", "node", "path", "choice", "ioAct", ...IO_ACTIONS[inputs.ioAct.value].fields, "times", ...numbered]
      : ["method", "volume", "node", "choice", "act", ...own, "phase", "times", ...numbered, ...(inBackground ? ["time"] : [])];
    for (const [name, element] of Object.entries(fields)) element.hidden = !["kind", "id", ...shown].includes(name);
    for (const option of inputs.phase.options) option.disabled = !phases.includes(option.value);
    if (!phases.includes(inputs.phase.value)) inputs.phase.value = phases[0];
    const [unset] = inputs.code.options;
    if (unset.hidden === array) {
      unset.hidden = !array;
      inputs.code.value = array ? "" : "RESOURCE_EXHAUSTED";
    }
  }

  function write() {
    typed = false;
    arrange();
    const now = fault();
    const array = inputs.kind.value === "backend-fault";
    inputs.id.placeholder = now.id;
    yaml.value = array ? backendFaultYaml(now) : ruleYaml(now);
    written = array ? backendFaultSentence(now) : ruleSentence(now);
    check();
  }

  let timer;
  let latest = 0;
  function check() {
    clearTimeout(timer);
    latest += 1;
    const mine = latest;
    timer = setTimeout(async () => {
      let error;
      try {
        await send("POST", "/scripts?dryRun=true", yaml.value);
      } catch (refusal) {
        error = refusal;
      }
      if (mine === latest) show(error);
    }, PAUSE);
  }

  function show(error) {
    const blank = !yaml.value.trim();
    say(verdict, error ? error.message : blank ? "" : "Valid.");
    say(sentence, error ? "" : written);
    dress(verdict, error ? "wrong" : "quiet");
    yaml.setAttribute("aria-invalid", String(Boolean(error)));
    add.disabled = Boolean(error) || blank;
    const wrong = error?.field?.split(".").at(-1);
    for (const [name, input] of Object.entries(inputs)) input.setAttribute("aria-invalid", String(name === wrong));
  }

  form.update = (ids, hasArray) => {
    const type = inputs.type.value;
    for (const option of inputs.type.options) option.hidden = option.disabled = !hasArray && BACKEND_FAULTS[option.value].ofArray;
    if (inputs.type.selectedOptions[0].disabled) inputs.type.value = [...inputs.type.options].find((option) => !option.disabled).value;
    if (used && ids.join() === used.join() && inputs.type.value === type) return;
    used = ids;
    if (!typed) write();
  };
  return form;
}
