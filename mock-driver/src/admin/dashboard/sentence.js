// Rules and backend faults as sentences and as YAML. A field that is null is not set, as in a fault file.

import { size } from "./dom.js";

const list = (items) => (items.length < 2 ? items.join("") : `${items.slice(0, -1).join(", ")} and ${items.at(-1)}`);
const every = (pattern) => !pattern || pattern === "*";
const volume = (pattern) => (every(pattern) ? "every volume" : `volume ${pattern}`);
const node = (pattern) => (every(pattern) ? "every node" : `node ${pattern}`);
const on = (fault) => `${volume(fault.volume)} on ${node(fault.node)}`;

function ordinal(number) {
  const ending = number % 100 > 10 && number % 100 < 14 ? "th" : { 1: "st", 2: "nd", 3: "rd" }[number % 10] ?? "th";
  return `${number}${ending}`;
}

/** What a backend fault does. Its fields are those of the form, in their order; one `ofArray` has no effect on a proxy. */
export const BACKEND_FAULTS = {
  "device-absent": { fields: ["volume", "node"], ofArray: true, text: (f) => `The device is missing for ${on(f)}` },
  "wrong-device": { fields: ["volume", "node", "device"], ofArray: true, text: (f) => `The publish context of ${on(f)} names the device ${f.device ?? "of another volume"}` },
  "damaged-filesystem": { fields: ["volume", "node"], ofArray: true, text: (f) => `The filesystem of ${on(f)} has errors, and NodeStageVolume fails with INTERNAL` },
  "foreign-data": { fields: ["volume", "node", "data"], ofArray: true, text: (f) => `NodeStageVolume of ${on(f)} finds foreign data (${f.data ?? "unknown"}) and fails with FAILED_PRECONDITION` },
  "node-gone": { fields: ["node"], text: (f) => `ControllerPublishVolume to ${node(f.node)} fails with NOT_FOUND` },
  "node-limit": { fields: ["node", "limit"], text: (f) => `The array attaches at most ${f.limit} volumes to ${node(f.node)}, whatever NodeGetInfo reports` },
  "read-only": { fields: ["code"], text: (f) => `The array refuses changes${f.code ? ` with ${f.code}` : ""}` },
  busy: { fields: ["volume", "node", "code"], text: (f) => `The array refuses changes of ${volume(f.volume)}${every(f.node) ? "" : ` on ${node(f.node)}`} with ${f.code ?? "ABORTED"}` },
  quota: { fields: ["volumes", "bytes"], ofArray: true, text: (f) => `CreateVolume fails with RESOURCE_EXHAUSTED beyond ${list([f.volumes != null && `${f.volumes} volumes`, f.bytes != null && size(f.bytes)].filter(Boolean))}` },
  "frozen-list": { fields: ["age"], ofArray: true, text: (f) => `ListVolumes returns the state of ${f.age ? `${f.age} ago` : "when the fault began"}` },
  "list-lacks": { fields: ["volume"], ofArray: true, text: (f) => `ListVolumes leaves ${volume(f.volume)} out` },
  "list-adds": { fields: ["volume", "node"], ofArray: true, text: (f) => `ListVolumes shows ${volume(f.volume)} on ${node(f.node)}, too` },
  "slow-node": { fields: ["node", "time"], text: (f) => `Attaches and detaches of ${node(f.node)} queue up, ${f.time} each` },
  "node-lock": { fields: ["node", "time", "code"], text: (f) => `An attach or detach locks ${node(f.node)} for ${f.time}; others fail with ${f.code ?? "ABORTED"} meanwhile` },
  "rate-limit": { fields: ["method", "per-second", "burst", "code"], text: (f) => `The array refuses ${every(f.method) ? "calls" : f.method} beyond ${f["per-second"]} per second${f.code ? ` with ${f.code}` : ""}` },
  "tracking-off": { fields: ["code"], text: (f) => `GetMetadataDelta fails with ${f.code ?? "FAILED_PRECONDITION"}` },
  "tokens-expired": { fields: ["code"], text: (f) => `Calls with a starting_token fail with ${f.code ?? "ABORTED"}` },
  "not-ready": { fields: ["for"], ofArray: true, text: (f) => `Probe reports that the driver is not ready${f.for ? `, for ${f.for}` : ""}` },
};

/** A backend fault as a sentence. */
export const backendFaultSentence = (fault) => `${BACKEND_FAULTS[fault.type]?.text(fault) ?? fault.type}.`;

/** A rule as a sentence. */
export function ruleSentence({ match, action, phase, times }) {
  const when = phase ?? { false: "before", true: "after", later: "background" }[action?.effect] ?? "before";
  const limit = times == null ? "" : times === 1 ? ", once" : `, at most ${times} times`;
  return `${calls(match ?? {})} ${list(acts(action ?? {}, when))}${limit}.`;
}

function calls(match) {
  const { method, io } = match;
  const subject = io ? `Every ${io === "*" ? "I/O" : list([io].flat())}` : every(method) ? "Every call" : method;
  return [subject, ...conditions(match)].join(" ").replaceAll(" ,", ",");
}

function conditions({ volume, node, name, path, offset, request, metadata, peer, deadline, secrets, parameters, not, while: during, ...rest }) {
  const pairs = (kind, entries) => Object.entries(entries ?? {}).map(([key, value]) => `${kind}${key} ${condition(value)}`);
  const fields = [...pairs("", request), ...pairs("metadata ", metadata), ...pairs("peer ", peer), ...pairs("secret ", secrets), ...pairs("parameter ", parameters)];
  const excluded = not && [not.method, ...conditions(not)].filter(Boolean).join(" ");
  return [
    path && `of the file ${path}`, offset && `from byte ${offset.from ?? 0}${offset.to == null ? " on" : ` to ${offset.to}`}`,
    volume && `of volume ${volume}`, node && `${rest.io ? "on" : "for"} node ${node}`, name && `named ${name}`,
    rest["bytes-above"] != null && `for more than ${size(rest["bytes-above"])}`,
    fields.length && `where ${list(fields)}`,
    deadline && `with a deadline that ${condition(deadline)}`,
    during?.volume && `while the volume is ${during.volume.replace("-", " ")}`,
    during?.state && `while the state is ${during.state}`,
    excluded && `but not ${excluded}`, numbers(rest),
  ].filter(Boolean);
}

function condition(value) {
  if (value == null || typeof value !== "object") return `is ${value}`;
  const words = {
    equals: (wanted) => `is ${wanted}`, "one-of": (wanted) => `is one of ${wanted.join(", ")}`, regex: (wanted) => `matches ${wanted}`,
    exists: (wanted) => (wanted ? "is set" : "is not set"), greater: (wanted) => `is above ${wanted}`, less: (wanted) => `is below ${wanted}`,
    not: (inner) => `not: ${condition(inner)}`,
  };
  return list(Object.entries(value).filter(([, wanted]) => wanted != null).map(([key, wanted]) => words[key]?.(wanted) ?? key));
}

function numbers({ io, call, every: step, probability }) {
  const chosen = [];
  const one = io ? "I/O" : "call";
  if (step === 1 && call) chosen.push(`from the ${ordinal(call)} ${one} on`);
  else if (step) chosen.push(`every ${ordinal(step)} ${one}${call ? ` from the ${ordinal(call)} on` : ""}`);
  else if (call) chosen.push(`only the ${ordinal(call)} ${one}`);
  if (probability != null) chosen.push(`${+(probability * 100).toPrecision(6)} % of ${io ? "all I/O" : "the calls"}`);
  return chosen.length && `, ${chosen.join(", ")},`;
}

const WORDED = ["code", "message", "pretend", "effect", "delay", "hang", "edit", "response", "drop-connection", "socket-away", "exit", "after-messages", "set-state", "errno", "torn", "lose-unsynced", "bandwidth"];

/** What a rule does to a call, as verbs. An action that has none is shown as in the YAML. */
function acts(action, phase) {
  const code = action.code ?? action.pretend ?? action.errno;
  const verbs = [];
  if (phase === "background") {
    verbs.push(`returns ${code ?? "DEADLINE_EXCEEDED"} at once`);
  } else if (phase === "after") {
    verbs.push("takes effect");
  }
  if (action["after-messages"] != null) verbs.push(`sends ${action["after-messages"]} messages`);
  if (action.delay) verbs.push(phase === "background" ? `takes effect after ${time(action.delay)}` : `waits ${time(action.delay)}`);
  if (action.hang) {
    const until = { "client-cancel": "until the client cancels", release: "until it is released" }[action.hang] ?? `for ${action.hang}`;
    verbs.push(phase === "background" && !action.delay ? `takes effect after hanging ${until}` : `hangs ${until}`);
  }
  if (code && phase === "before") verbs.push(code === "OK" ? "returns OK without an effect" : `fails with ${code}`);
  if (code && phase === "after") verbs.push(`returns ${code}`);
  if (action.edit) verbs.push(`returns another ${list(Object.keys(action.edit))}`);
  if (action.response) verbs.push("returns a stub");
  if (action["drop-connection"]) verbs.push("loses its connection");
  if (action["socket-away"]) verbs.push(`removes the socket for ${action["socket-away"]}`);
  if (action.exit != null) verbs.push(action.exit === "kill" ? "kills the driver" : `exits the driver with status ${action.exit}`);
  if (action.bandwidth) verbs.push(`shares ${action.bandwidth} bytes per second`);
  if (action.torn != null) verbs.push(`succeeds with its first ${action.torn} bytes on the disk only`);
  if (action["lose-unsynced"]) verbs.push("loses all writes since the last fsync");
  if (action["set-state"]) verbs.push(`sets the state to ${action["set-state"]}`);
  const others = Object.entries(action).filter(([key]) => !WORDED.includes(key));
  return [...verbs, ...others.map(([key, value]) => `changes ${key}: ${flow(value)}`)];
}

function time(delay) {
  if (typeof delay === "string") return delay;
  if (delay.uniform) return delay.uniform.join(" to ");
  return `${delay.exponential} on average${delay.max ? ` (at most ${delay.max})` : ""}`;
}

// === YAML ===

const PLAIN = /^(?!(?:true|false|null|yes|no|on|off|y|n)$)(?:[A-Za-z_/][\w./*?-]*(?: [\w./*?-]+)*|\d+(?:ms|s|m|h))$/i;

const scalar = (value) => (typeof value === "string" && PLAIN.test(value) ? value : JSON.stringify(value));

function flow(value) {
  if (Array.isArray(value)) return `[${value.map(flow).join(", ")}]`;
  if (value === null || typeof value !== "object") return scalar(value);
  return `{${Object.entries(value).map(([key, inner]) => `${scalar(key)}: ${flow(inner)}`).join(", ")}}`;
}

/** A rule as an item of a fault file: a line for each field. */
export const ruleYaml = (item) => Object.entries(item).map(([key, value], index) => `${index ? "  " : "- "}${key}: ${flow(value)}\n`).join("");

/** A backend fault as a fault file. */
export const backendFaultYaml = (fault) => `backend-faults:\n${ruleYaml(fault)}`;
