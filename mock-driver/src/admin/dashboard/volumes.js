// Volumes, their attachments and health issues.

import { ask, change, get, part, query } from "./api.js";
import { dress, field, make, say, size, sync, table } from "./dom.js";
import { chip } from "./nodes.js";
import { Pager } from "./pager.js";

const PAGE = 50;

export function volumes(panel, refresh) {
  const pager = new Pager("volumes", refresh);
  const again = () => { pager.reset(); refresh(); };
  const search = make("input", { type: "search", autocomplete: "off", oninput: again });
  const held = make("select", { onchange: again },
    make("option", { value: "" }, "all"), make("option", { value: "true" }, "attached"), make("option", { value: "false" }, "not attached"));
  const add = make("button", { type: "button", onclick: () => create(refresh) }, "Create volume…");
  const list = table("Volumes and their attachments", "Volume", "Name", ["Size", "number"], "Attached to", "Health", ["", "acts"]);
  panel.append(make("div", { class: "bar" }, field("Search", search, "grow"), field("Show", held), add, pager.whole), list.whole);

  return async () => {
    const page = await get(`/volumes${query({ search: search.value, attached: held.value, after: pager.after, limit: PAGE })}`);
    pager.update(page);
    sync(list.body, page.items, (volume) => volume.id, (volume) => row(volume.id, refresh));
  };
}

async function create(refresh) {
  const name = await ask("Create a volume", "Of the default size, for a filesystem on one node.", "Create", { label: "Name" });
  if (name && await change("POST", "/volumes", { name }, `Created ${name}`)) refresh();
}

function row(id, refresh) {
  const name = make("td", { class: "id" });
  const bytes = make("td", { class: "number" });
  const chips = make("div", { class: "chips" });
  const none = make("span", { class: "quiet" });
  const health = make("span");
  const attach = make("button", { type: "button", "aria-label": `Attach ${id}` }, "Attach…");
  const setHealth = make("button", { type: "button" });
  const remove = make("button", { type: "button", class: "danger", "aria-label": `Delete ${id}`, onclick: () => destroy(id, refresh) }, "Delete");
  const line = make("tr", {},
    make("th", { scope: "row", class: "id" }, id), name, bytes, make("td", {}, make("div", { class: "chips" }, chips, none)),
    make("td", {}, health), make("td", { class: "acts" }, attach, " ", setHealth, " ", remove));

  line.update = (volume) => {
    say(name, volume.name);
    say(bytes, size(volume.capacityBytes));
    sync(chips, volume.attachments, (held) => held.node, (held) => chip(id, held.node, held.readonly ? `${held.node} (read-only)` : held.node, refresh));
    say(none, volume.attachments.length ? "" : "none");
    const issues = volume.health ?? [];
    say(health, issues.length ? issues.map((issue) => issue.status).join(", ") : "healthy");
    dress(health, issues.length ? "badge bad" : "quiet");
    health.title = issues.map((issue) => `${issue.reason} ${issue.message}`).join("; ");
    say(setHealth, issues.length ? "Clear health" : "Set DEGRADED");
    setHealth.setAttribute("aria-label", issues.length ? `Clear the health issues of ${id}` : `Set ${id} DEGRADED`);
    setHealth.onclick = async () => {
      const issue = { status: "DEGRADED", reason: "SetByHand", message: "set on the dashboard" };
      const done = issues.length ? `${id} is healthy` : `${id} is degraded`;
      if (await change("PATCH", `/volumes/${part(id)}`, { health: issues.length ? [] : [issue] }, done)) refresh();
    };
    attach.onclick = () => attachTo(volume, refresh);
    remove.disabled = volume.attachments.length > 0;
  };
  return line;
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
