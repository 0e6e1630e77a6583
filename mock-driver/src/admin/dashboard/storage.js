// Storage pools, and health issues of the storage of nodes.

import { ask, change, get, part } from "./api.js";
import { dress, make, say, size, sync, table } from "./dom.js";
import { segments } from "./nodes.js";

export function storage(panel, refresh) {
  const pools = table("Storage pools", "Pool", "Used", ["Capacity", "number"], ["Available", "number"], "Where", ["", "acts"]);
  const issues = table("Storage health issues", "Behind", "Status", "Reason", "For", "Message", ["", "acts"]);
  const setHealth = make("button", { type: "button", onclick: () => setStorageHealth(refresh) }, "Set storage health…");
  const deltas = make("button", { type: "button" });
  panel.append(
    make("h2", {}, "Pools"), pools.whole,
    make("h2", {}, "Health"), make("div", { class: "bar" }, setHealth), issues.whole,
    make("h2", {}, "Changed blocks"), make("div", { class: "bar" }, deltas));

  return async () => {
    const [known, health, backendFaults] = await Promise.all([get("/pools"), get("/storage"), get("/backend-faults")]);
    sync(pools.body, known, (pool) => pool.name, (pool) => poolRow(pool, pools, refresh));
    const unhealthy = [{ node: undefined, health: health.health }, ...health.nodes].filter((one) => one.health.length > 0);
    sync(issues.body, unhealthy, (one) => one.node ?? "", (one) => unhealthyRow(one.node, issues, refresh));
    say(issues.caption, unhealthy.length ? "Storage health issues" : "No storage health issues.");
    follow(deltas, backendFaults.filter((one) => one.fault.type === "tracking-off"), refresh);
  };
}

/** The switch for GetMetadataDelta: a backend fault of any origin. */
function follow(button, faults, refresh) {
  const off = faults.filter((one) => one.enabled);
  say(button, off.length ? "Track changes again" : "Stop tracking changes");
  dress(button, off.length ? "" : "danger");
  button.onclick = async () => {
    if (off.length === 0) {
      const fault = { id: "tracking-off", type: "tracking-off" };
      if (await change("POST", "/backend-faults", fault, "GetMetadataDelta is refused")) refresh();
      return;
    }
    for (const one of off) {
      if (!await change("PATCH", `/backend-faults/${part(one.id)}`, { enabled: false }, "GetMetadataDelta works again")) break;
    }
    refresh();
  };
}

function poolRow(pool, list, refresh) {
  const { name } = pool;
  const meter = make("meter", { min: 0, "aria-hidden": "true" });
  const [used, capacity, available] = [make("span", { class: "number" }), make("span"), make("span")];
  const resize = make("button", { type: "button", "aria-label": `Resize pool ${name}` }, "Resize…");
  const line = list.row(["id", name], make("div", { class: "fill" }, meter, used), ["number", capacity], ["number", available],
    ["id", segments(pool.topology) || "everywhere"], ["acts", resize]);
  line.update = (now) => {
    meter.max = now.capacityBytes || 1;
    meter.value = now.usedBytes;
    meter.high = meter.max * 0.9;
    meter.optimum = 0;
    say(used, size(now.usedBytes));
    say(capacity, size(now.capacityBytes));
    say(available, size(now.availableBytes));
    resize.onclick = () => resizePool(now, refresh);
  };
  return line;
}

async function resizePool(pool, refresh) {
  const text = `At least the ${pool.usedBytes} allocated bytes.`;
  const bytes = await ask(`Resize ${pool.name}`, text, "Resize", { label: "Bytes", value: String(pool.capacityBytes), number: true });
  if (bytes === false) return;
  if (await change("PATCH", `/pools/${part(pool.name)}`, { capacityBytes: bytes }, `${pool.name} has ${size(bytes)}`)) refresh();
}

/** The path of the storage health of a node, or of all nodes. */
const pathOf = (node) => (node ? `/nodes/${part(node)}` : "/storage");

async function setStorageHealth(refresh) {
  const text = "Sets DEGRADED, as NodeGetStorageHealth reports it. * is the storage of all nodes.";
  const node = await ask("Set storage health", text, "Set", { label: "Node", value: "*" });
  if (!node) return;
  const health = [{ status: "DEGRADED", reason: "SetByHand", message: "set on the dashboard" }];
  const behind = node === "*" ? undefined : node;
  if (await change("PATCH", pathOf(behind), { health }, `Storage of ${behind ?? "all nodes"} is degraded`)) refresh();
}

function unhealthyRow(node, list, refresh) {
  const name = node ?? "all nodes";
  const [status, reason, use, message] = [make("span", { class: "badge bad" }), make("span"), make("span"), make("span")];
  const clear = make("button", { type: "button", "aria-label": `Clear storage health of ${name}`, onclick: async () => {
    if (await change("PATCH", pathOf(node), { health: [] }, `Storage of ${name} is healthy`)) refresh();
  } }, "Clear");
  const line = list.row(["id", name], status, reason, ["id", use], ["wide", message], ["acts", clear]);
  line.update = (now) => {
    const all = (field, none) => now.health.map((issue) => issue[field] ?? none).join("; ");
    say(status, all("status"));
    say(reason, all("reason"));
    say(use, all("capability", "every use"));
    say(message, all("message"));
  };
  return line;
}
