// Snapshots, and groups of them.

import { ask, change, get, part, query } from "./api.js";
import { dress, field, make, say, size, sync, table } from "./dom.js";
import { Pager } from "./pager.js";

const PAGE = 50;

export function snapshots(panel, refresh) {
  const [pager, groupPager] = [new Pager("snapshots", refresh), new Pager("groups", refresh)];
  const again = () => { pager.reset(); groupPager.reset(); refresh(); };
  const search = make("input", { type: "search", autocomplete: "off", oninput: again });
  const source = make("input", { type: "search", autocomplete: "off", placeholder: "whole id", oninput: again });
  const take = make("button", { type: "button", onclick: () => create(refresh) }, "Take a snapshot…");
  const takeGroup = make("button", { type: "button", onclick: () => createGroup(refresh) }, "Take a group…");
  const list = table("Snapshots and the volumes they are of", "Snapshot", "Name", "Of volume", ["Size", "number"], "State", "Taken", "Pool", "Group", ["", "acts"]);
  const groups = table("Groups of snapshots, taken together", "Group", "Name", "State", "Taken", "Snapshots", ["", "acts"]);
  panel.append(
    make("div", { class: "bar" }, field("Search", search, "grow"), field("Of volume", source)),
    make("h2", {}, "Snapshots"), make("div", { class: "bar" }, take, pager.whole), list.whole,
    make("h2", {}, "Group snapshots"), make("div", { class: "bar" }, takeGroup, groupPager.whole), groups.whole);

  return async () => {
    const wanted = { search: search.value, source: source.value.trim(), limit: PAGE };
    const [one, several] = await Promise.all([
      get(`/snapshots${query({ ...wanted, after: pager.after })}`),
      get(`/group-snapshots${query({ ...wanted, after: groupPager.after })}`),
    ]);
    pager.update(one);
    groupPager.update(several);
    sync(list.body, one.items, keyOf, (snapshot) => row(snapshot, list, refresh));
    sync(groups.body, several.items, keyOf, (group) => groupRow(group, groups, refresh));
  };
}

async function create(refresh) {
  const source = await ask("Take a snapshot", "Of the volume's present content.", "Next", { label: "Of volume" });
  if (!source) return;
  const name = await ask(`Take a snapshot of ${source}`, "CreateSnapshot is idempotent by name.", "Take", { label: "Name" });
  if (name && await change("POST", "/snapshots", { name, source }, `Took ${name} of ${source}`)) refresh();
}

async function createGroup(refresh) {
  const text = await ask("Take a group of snapshots", "All of them or none. Write the volumes with commas between them.", "Next", { label: "Of volumes" });
  if (!text) return;
  const sources = text.split(",").map((volume) => volume.trim()).filter(Boolean);
  const name = await ask(`Take a group of ${sources.length} snapshots`, "CreateVolumeGroupSnapshot is idempotent by name.", "Take", { label: "Name" });
  if (name && await change("POST", "/group-snapshots", { name, sources }, `Took ${name} of ${sources.join(", ")}`)) refresh();
}

/** Whether volumes can be made of something, as a badge. */
function readiness() {
  const badge = make("span");
  badge.set = (ready) => {
    say(badge, ready ? "ready" : "not ready");
    dress(badge, `badge ${ready ? "good" : "warn"}`);
  };
  return badge;
}

/** One that was deleted and taken again may have the same id. */
const keyOf = ({ id, created }) => `${id} ${created}`;

const time = (text) => text.slice(0, 19).replace("T", " ");

function row(snapshot, list, refresh) {
  const { id } = snapshot;
  const state = readiness();
  const remove = make("button", { type: "button", class: "danger", "aria-label": `Delete snapshot ${id}`, onclick: async () => {
    if (!await ask(`Delete ${id}?`, "Volumes that were made of it stay.", "Delete")) return;
    if (await change("DELETE", `/snapshots/${part(id)}`, undefined, `Deleted ${id}`)) refresh();
  } }, "Delete");
  // Snapshots of a group go with it.
  remove.disabled = snapshot.group !== undefined;
  const name = make("span", { title: snapshot.name }, snapshot.name);
  const line = list.row(["id", id], ["id", name], ["id", snapshot.source], ["number", size(snapshot.sizeBytes)], state,
    ["number time", time(snapshot.created)], ["id", snapshot.pool], ["id", snapshot.group ?? ""], ["acts", remove]);
  line.update = (now) => state.set(now.ready);
  return line;
}

function groupRow(group, list, refresh) {
  const { id } = group;
  const state = readiness();
  const members = group.snapshots.map((snapshot) => make("span", { class: "badge id" }, `${snapshot.id} of ${snapshot.source}`));
  const remove = make("button", { type: "button", class: "danger", "aria-label": `Delete group ${id}`, onclick: async () => {
    if (!await ask(`Delete ${id}?`, `Its ${group.snapshots.length} snapshots go with it.`, "Delete")) return;
    if (await change("DELETE", `/group-snapshots/${part(id)}`, undefined, `Deleted ${id} with its snapshots`)) refresh();
  } }, "Delete");
  const name = make("span", { title: group.name }, group.name);
  const line = list.row(["id", id], ["id", name], state, ["number time", time(group.created)],
    ["wide", make("div", { class: "chips strip", tabIndex: 0, role: "group", "aria-label": `Snapshots of ${id}` }, ...members)], ["acts", remove]);
  line.update = (now) => state.set(now.ready);
  return line;
}
