// Nodes with their attach limits and attached volumes.

import { ask, change, get, part, query } from "./api.js";
import { dress, field, make, say, sync, table } from "./dom.js";
import { Pager } from "./pager.js";

const PAGE = 50;

export function nodes(panel, refresh) {
  const pager = new Pager("nodes", refresh);
  const search = make("input", { type: "search", autocomplete: "off", oninput: () => { pager.reset(); refresh(); } });
  const held = make("select", { onchange: () => { pager.reset(); refresh(); } },
    make("option", { value: "" }, "all"), make("option", { value: "true" }, "with volumes"), make("option", { value: "false" }, "without"));
  const add = make("button", { type: "button", onclick: () => register(refresh) }, "Register a node…");
  const list = table("Nodes and the volumes on them", "Node", "State", "Zone", "Attached", "Volumes", ["", "acts"]);
  panel.append(make("div", { class: "bar" }, field("Search", search, "grow"), field("Show", held), add, pager.whole), list.whole);

  return async () => {
    const page = await get(`/nodes${query({ search: search.value, attached: held.value, after: pager.after, limit: PAGE })}`);
    pager.update(page);
    sync(list.body, page.items, (node) => node.id, (node) => row(node.id, list, refresh));
  };
}

async function register(refresh) {
  const id = await ask("Register a node", "Registers the node with the array.", "Register", { label: "Node id" });
  if (id && await change("POST", "/nodes", { id }, `Registered ${id}`)) refresh();
}

/** The places that a topology allows, such as a zone. */
export const zone = (topology) => Object.values(topology ?? {}).join(", ");

/** A topology with its keys. */
export const segments = (topology) => Object.entries(topology ?? {}).map((pair) => pair.join("=")).join(", ");

function row(id, list, refresh) {
  const state = make("span");
  const where = make("span");
  const meter = make("meter", { min: 0, "aria-hidden": "true" });
  const count = make("span", { class: "number" });
  const chips = make("div", { class: "chips strip" });
  const more = make("span", { class: "quiet" });
  const lose = make("button", { type: "button" });
  const limit = make("button", { type: "button", "aria-label": `Change the limit of ${id}` }, "Limit…");
  const line = list.row(["id", id], state, ["quiet", where], make("div", { class: "fill" }, meter, count),
    ["wide", make("div", { class: "fill" }, chips, more)], ["acts", limit, " ", lose]);

  line.update = (node) => {
    const over = node.limit !== undefined && node.attached > node.limit;
    const full = node.limit !== undefined && node.attached >= node.limit;
    const issues = (node.health ?? []).map((issue) => `${issue.status} ${issue.reason}`).join("; ");
    const [word, style] = !node.registered ? ["deregistered", "bad"] : over ? ["over limit", "bad"] : issues ? ["storage issue", "bad"] : full ? ["full", "warn"] : ["registered", "good"];
    say(state, word);
    dress(state, `badge ${style}`);
    state.title = issues;
    say(where, zone(node.topology) || "–");
    where.title = segments(node.topology);
    meter.hidden = node.limit === undefined;
    meter.max = node.limit || 1;
    meter.optimum = 0;
    meter.high = Math.max(0, (node.limit || 1) - 0.5);
    meter.value = node.attached;
    const lie = node.advertisedLimit !== node.limit ? ` (reports ${node.advertisedLimit ?? "no limit"})` : "";
    say(count, node.limit === undefined ? `${node.attached}${lie}` : `${node.attached} / ${node.limit}${lie}`);
    sync(chips, node.volumes, (volume) => volume, (volume) => chip(volume, id, volume, refresh));
    const rest = node.attached - node.volumes.length;
    say(more, rest > 0 ? `and ${rest} more` : "");
    say(lose, node.registered ? "Deregister" : "Register");
    lose.setAttribute("aria-label", node.registered ? `Deregister node ${id}` : `Register node ${id}`);
    dress(lose, node.registered ? "danger" : "");
    lose.onclick = () => flip(node, refresh);
    limit.onclick = () => setLimit(node, refresh);
  };
  return line;
}

async function flip(node, refresh) {
  const gone = node.registered;
  const text = `Deregisters node ${node.id}. Its ${node.attached} volumes stay attached.`;
  if (gone && !await ask(`Deregister ${node.id}?`, text, "Deregister")) return;
  const done = gone ? `Deregistered ${node.id}` : `Registered ${node.id}`;
  if (await change("PATCH", `/nodes/${part(node.id)}`, { registered: !gone }, done)) refresh();
}

async function setLimit(node, refresh) {
  const text = "Maximum attached volumes. 0 means unlimited. Does not change max_volumes_per_node of NodeGetInfo.";
  const limit = await ask(`Limit of ${node.id}`, text, "Set", { label: "Volumes", value: String(node.limit ?? 0), number: true });
  if (limit === false) return;
  if (await change("PATCH", `/nodes/${part(node.id)}`, { limit }, `Limit of ${node.id}: ${limit || "unlimited"}`)) refresh();
}

/** An attached volume, to be detached out of band. */
export function chip(volume, node, text, refresh) {
  const label = `Detach ${volume} from ${node} out of band`;
  return make("button", {
    type: "button", class: "chip id", "aria-label": label, title: label,
    onclick: async () => {
      const warning = `No CSI call is made: the attacher and kubelet are not notified.`;
      if (!await ask("Detach out of band?", warning, "Detach")) return;
      if (await change("DELETE", `/attachments/${part(volume)}/${part(node)}`, undefined, `Detached ${volume} from ${node}`)) refresh();
    },
  }, text);
}
