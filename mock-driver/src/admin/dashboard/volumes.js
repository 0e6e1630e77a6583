// Volumes, their attachments, health issues and device faults.

import { ask, change, get, part, query } from "./api.js";
import { dress, Expanded, field, leave, make, say, size, sync, table, toggle } from "./dom.js";
import { chip, zone } from "./nodes.js";
import { Pager } from "./pager.js";

const PAGE = 50;

/** The backend faults of a volume's device, with the labels of their switches. */
const DEVICE_FAULTS = { "device-absent": "no device", "wrong-device": "wrong device", "damaged-filesystem": "damaged filesystem", "foreign-data": "foreign data" };

/** The rules for the I/O of a volume, with their actions and the labels of their switches. */
const IO_FAULTS = {
  "io-error": ["I/O errors", { errno: "EIO" }], "io-slow": ["slow I/O (2 s)", { delay: "2s" }], "io-hang": ["hanging I/O", { hang: "release" }],
};

export function volumes(panel, refresh) {
  const pager = new Pager("volumes", refresh);
  const again = () => { pager.reset(); refresh(); };
  const search = make("input", { type: "search", autocomplete: "off", oninput: again });
  const held = make("select", { onchange: again },
    make("option", { value: "" }, "all"), make("option", { value: "true" }, "attached"), make("option", { value: "false" }, "not attached"));
  const add = make("button", { type: "button", onclick: () => create(refresh) }, "Create volume…");
  const list = table("Volumes and their attachments", "Volume", "Name", ["Size", "number"], "Pool", "Attached to", "Health", ["", "acts"]);
  const expanded = new Expanded(7, refresh);
  panel.append(make("div", { class: "bar" }, field("Search", search, "grow"), field("Show", held), add, pager.whole), list.whole);

  return async () => {
    const [page, pools, faults, { rules }] = await Promise.all([
      get(`/volumes${query({ search: search.value, attached: held.value, after: pager.after, limit: PAGE })}`), get("/pools"), get("/backend-faults"), get("/faults"),
    ]);
    pager.update(page);
    const poolOf = new Map(pools.map((pool) => [pool.name, pool]));
    const known = page.items.map((volume) => ({ ...volume, pool: poolOf.get(volume.pool) ?? { name: volume.pool },
      rules: rules.filter(({ rule }) => rule.match.io && matches(rule.match.volume, volume.id)),
      faults: faults.filter(({ fault }) => fault.type in DEVICE_FAULTS && matches(fault.volume, volume.id)) }));
    expanded.sync(list.body, known, (volume) => volume.id, ({ id }) => row(id, list, expanded, refresh), ({ id }) => detail(id, refresh));
  };
}

/** Whether a pattern, in which `*` is any text and `?` any character, matches an id. None matches all. */
function matches(pattern, id) {
  const letters = { "*": ".*", "?": "." };
  const text = [...(pattern ?? "*")].map((letter) => letters[letter] ?? letter.replace(/[\\^$.|+()[\]{}]/, "\\$&")).join("");
  return new RegExp(`^${text}$`, "su").test(id);
}

async function create(refresh) {
  const name = await ask("Create a volume", "Of the default size, for a filesystem on one node.", "Create", { label: "Name" });
  if (name && await change("POST", "/volumes", { name }, `Created ${name}`)) refresh();
}

function row(id, list, expanded, refresh) {
  const [name, bytes, where, health] = [make("span"), make("span"), make("span"), make("span")];
  const chips = make("div", { class: "chips strip" });
  const none = make("span", { class: "quiet" });
  const attach = make("button", { type: "button", "aria-label": `Attach ${id}` }, "Attach…");
  const remove = make("button", { type: "button", class: "danger", "aria-label": `Delete ${id}`, onclick: () => destroy(id, refresh) }, "Delete");
  const line = list.row(["id", id], ["id", name], ["number", bytes], ["id", where], ["wide", make("div", { class: "fill" }, chips, none)], health,
    ["acts", expanded.button(id, `More about ${id}`), " ", attach, " ", remove]);

  line.update = (volume) => {
    say(name, volume.name);
    name.title = volume.name;
    say(bytes, size(volume.capacityBytes));
    const there = zone(volume.pool.topology);
    say(where, there ? `${volume.pool.name} (${there})` : volume.pool.name);
    sync(chips, volume.attachments, (held) => held.node, (held) => chip(id, held.node, held.readonly ? `${held.node} (read-only)` : held.node, refresh));
    chips.hidden = volume.attachments.length === 0;
    say(none, chips.hidden ? "none" : "");
    const issues = volume.health ?? [];
    const broken = [...new Set([...volume.faults.filter((fault) => fault.enabled).map(({ fault }) => fault.type), ...volume.rules.filter((rule) => rule.enabled).map((rule) => rule.id)])];
    say(health, [...issues.map((issue) => issue.status), ...broken].join(", ") || "healthy");
    dress(health, issues.length || broken.length ? "badge bad" : "quiet");
    health.title = issues.map((issue) => `${issue.reason} ${issue.message}`).join("; ");
    attach.onclick = () => attachTo(volume, refresh);
    remove.disabled = volume.attachments.length > 0;
  };
  return line;
}

/** What a volume is made of, and switches that break it. */
function detail(id, refresh) {
  const facts = make("dl", { class: "facts" });
  let others = [];
  const degraded = toggle(`${id} DEGRADED`, async (on) => {
    const health = [...others, ...(on ? [{ status: "DEGRADED", reason: "SetByHand", message: "set on the dashboard" }] : [])];
    if (await change("PATCH", `/volumes/${part(id)}`, { health }, `${id} is ${on ? "degraded" : "not degraded"}`)) refresh();
  });
  const switches = Object.entries(DEVICE_FAULTS).map(([type, label]) => {
    let faults = [];
    const button = toggle(`${label} of ${id}`, (on) => breakDevice(id, type, on, faults, refresh));
    button.update = (volume) => {
      const ofType = volume.faults.filter(({ fault }) => fault.type === type);
      faults = ofType.filter(({ fault }) => fault.volume === id);
      // The switch of one volume must not end a fault of several ones.
      const wider = ofType.filter((fault) => fault.enabled && !faults.includes(fault)).map((fault) => fault.id);
      button.set(wider.length > 0 || faults.some((fault) => fault.enabled));
      if (wider.length) leave(button);
      button.disabled = wider.length > 0;
      button.title = wider.join(", ");
    };
    return [button, label];
  });
  for (const [kind, [label, action]] of Object.entries(IO_FAULTS)) {
    const rule = `${kind}-${id}`;
    let known;
    const button = toggle(`${label} of ${id}`, async (on) => {
      const done = `${id}: ${label} ${on ? "on" : "off"}`;
      const changed = known ? change("PATCH", `/faults/${part(rule)}`, { enabled: on }, done)
        : change("POST", "/faults", { id: rule, match: { io: "*", volume: id }, action }, done);
      if (await changed) refresh();
    });
    button.update = (volume) => {
      known = volume.rules.find((one) => one.id === rule);
      button.set(Boolean(known?.enabled));
    };
    switches.push([button, label]);
  }
  degraded.update = ({ health = [] }) => {
    others = health.filter((issue) => issue.status !== "DEGRADED");
    degraded.set(others.length < health.length);
  };
  const items = [[degraded, "degraded health"], ...switches].map(([button, label]) => make("li", {}, button, make("span", {}, label)));
  const whole = make("div", {}, facts, make("ul", { class: "switches" }, ...items));
  whole.update = (volume) => {
    const pairs = Object.entries({ ...volume.parameters, ...volume.mutableParameters });
    const known = [["Name", volume.name], ["Made for", volume.capabilities.join(", ") || "every use"], ["Parameters", pairs.map((pair) => pair.join("=")).join(", ")],
      ["Source", volume.source], ["Health", (volume.health ?? []).map((issue) => `${issue.status} ${issue.reason} ${issue.message}`).join("; ")]];
    sync(facts, known.filter(([, text]) => text), ([title]) => title, ([title]) => {
      const value = make("dd", { class: "id" });
      const fact = make("div", {}, make("dt", {}, title), value);
      fact.update = ([, text]) => say(value, text);
      return fact;
    });
    for (const [button] of [[degraded], ...switches]) button.update(volume);
  };
  return whole;
}

/** Switches the backend faults that only this volume's device has, of any origin. */
async function breakDevice(id, type, on, faults, refresh) {
  const done = `${id}: ${type} ${on ? "on" : "off"}`;
  if (on && faults.length === 0) {
    if (await change("POST", "/backend-faults", { id: `${type}-${id}`, type, volume: id }, done)) refresh();
    return;
  }
  for (const fault of on ? faults.slice(0, 1) : faults.filter((fault) => fault.enabled)) {
    if (!await change("PATCH", `/backend-faults/${part(fault.id)}`, { enabled: on }, done)) break;
  }
  refresh();
}

async function attachTo({ id, capabilities }, refresh) {
  const use = useOf(capabilities);
  const text = `Out of band: without a CSI call.${use.block ? " As a raw block device." : ""}`;
  const node = await ask(`Attach ${id}`, text, "Attach", { label: "To node" });
  if (node && await change("PUT", `/attachments/${part(id)}/${part(node)}`, use, `Attached ${id} to ${node}`)) refresh();
}

/** How to attach a volume: by the first use it was made for, such as `block MULTI_NODE_MULTI_WRITER`; one made for every use as the driver likes. */
function useOf([first]) {
  if (!first) return {};
  const [access, accessMode] = first.split(/ (?=\w+$)/);
  return { block: access === "block", accessMode };
}

async function destroy(volume, refresh) {
  if (!await ask(`Delete ${volume}?`, "Its data goes with it.", "Delete")) return;
  if (await change("DELETE", `/volumes/${part(volume)}`, undefined, `Deleted ${volume}`)) refresh();
}
