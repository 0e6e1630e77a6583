// The picture of the path: pods on nodes, VolumeAttachments, the attacher, the array.

const SVG = "http://www.w3.org/2000/svg";
const LINE = 18;
const GAP = 12;
/** Width of a character, and the number of lines of a text. */
const CHARACTER = 7.3;
const LINES = 5;
/** Space for edges beside columns that stand below each other. */
const GUTTER = 56;
/** Below this width of the page, the columns stand below each other. */
const NARROW = 640;

/** An SVG element. */
function shape(name, attributes, ...children) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

/** What the attachment does, and for whom it waits. */
export function stateOf(item, snapshot) {
  const call = item.deleting ? "detach" : "attach";
  if (item.error) return { tone: "bad", text: `${call} fails: ${item.error}` };
  if (item.attached && !item.deleting) {
    return waitsForNode(item, snapshot)
      ? { tone: "bad", text: `attached: node ${item.node} is lost: waits for its kubelet or the out-of-service taint` }
      : { tone: "good", text: "attached" };
  }
  if (isDead(snapshot)) return { tone: "bad", text: `${call} waits for the attacher` };
  if (snapshot.array === null) return { tone: "bad", text: `${call} waits for the driver` };
  const lane = snapshot.lanes?.find((lane) => lane.lane === call);
  // Only without a call that runs it is certain that none is for this attachment.
  if (!lane || lane.running || !(lane.ready || lane.waiting)) return { tone: "busy", text: `${call}ing` };
  const places = [lane.ready && "queued", lane.waiting && "in backoff"].filter(Boolean);
  return { tone: "bad", text: `${call} ${places.join(" or ")} at the attacher` };
}

/** Whether the attachment to a lost node stays, although a pod elsewhere waits for the volume. */
function waitsForNode(item, snapshot) {
  const node = snapshot.nodes.find(({ name }) => name === item.node);
  const isLost = node && !node.ready && !node.outOfService;
  return isLost && snapshot.pods.some((pod) => pod.phase === "Pending" && pod.node !== item.node && pod.volumes.includes(item.volume));
}

/** Whether the attacher does not respond. With replicas the lanes of none are read. */
const isDead = (snapshot) => snapshot.lanes === null && !snapshot.hasReplicas;

/** The lines of a pod: its volumes, and why it waits. */
function linesOf(pod) {
  const name = pod.node ? `${pod.name}: ${pod.volumes.join(", ") || "no volume"}` : pod.name;
  return [[name, pod.phase === "Running" ? "good" : "busy"], ...(pod.reason ? [[pod.reason, "bad"]] : [])];
}

/** The attacher: its lanes with work. */
function workOf(snapshot) {
  if (snapshot.lanes === null) {
    return isDead(snapshot) ? [["does not respond", "bad"]] : [["several attachers, lanes not shown", "plain"]];
  }
  const lanes = snapshot.lanes.filter(({ running, ready, waiting }) => running + ready + waiting > 0);
  return lanes.length === 0 ? [["idle", "plain"]] : lanes.map((lane) => [
    `${lane.lane}: ${lane.running} running, ${lane.ready + lane.waiting} waiting`, lane.waiting ? "bad" : "busy"]);
}

/** The boxes of each column; a box has a key, lines of [text, tone], and a tone. */
function columnsOf(snapshot) {
  const nodes = snapshot.nodes.map((node) => {
    const pods = snapshot.pods.filter((pod) => pod.node === node.name);
    const tone = node.outOfService || !node.ready ? "bad" : "plain";
    const state = node.outOfService ? ", out of service" : node.ready ? "" : ", not ready";
    return { key: `node ${node.name}`, tone, lines: [[`node ${node.name}${state}`, "title"],
      ...pods.flatMap(linesOf)] };
  });
  const pending = snapshot.pods.filter((pod) => !pod.node);
  if (pending.length) {
    nodes.push({ key: "pending", tone: "busy", lines: [["not scheduled", "title"], ...pending.flatMap(linesOf)] });
  }
  const attachments = snapshot.attachments.map((item) => {
    const { tone, text } = stateOf(item, snapshot);
    return { key: `va ${item.name}`, tone, lines: [[`${item.volume} → ${item.node}`, "title"], [text, tone]] };
  });
  const work = workOf(snapshot);
  const toneOfWork = isDead(snapshot) ? "bad" : work[0][1] === "plain" ? "plain" : "busy";
  const attacher = { key: "attacher", tone: toneOfWork, lines: [["attacher", "title"], ...work] };
  const places = new Map(snapshot.volumes.map((volume) => [volume, []]));
  for (const row of snapshot.array ?? []) for (const volume of row.volumes) places.set(volume, [...places.get(volume) ?? [], row.node]);
  const array = snapshot.array === null ? [{ key: "array", tone: "bad", lines: [["array", "title"], ["the driver does not respond", "bad"]] }]
    : [...places].map(([volume, at]) => ({ key: `volume ${volume}`, tone: at.length ? "good" : "plain", lines: [[`volume ${volume}`, "title"],
      [at.length ? `published to ${at.join(" and ")}` : "not published", at.length > 1 ? "bad" : "plain"]] }));
  return [["Pods on nodes", nodes], ["VolumeAttachments", attachments], ["Attacher", [attacher]], ["Array", array]];
}

/** [from, to, tone] by the boxes' keys. */
function edgesOf(snapshot) {
  return snapshot.attachments.flatMap((item) => {
    const { tone } = stateOf(item, snapshot);
    return [[`node ${item.node}`, `va ${item.name}`, tone], [`va ${item.name}`, "attacher", tone],
      ["attacher", snapshot.array === null ? "array" : `volume ${item.volume}`, tone]];
  });
}

/** Breaks a text into the lines of a box; the tables below have whole what does not fit. */
function wrap(text, width) {
  const room = Math.floor((width - 16) / CHARACTER);
  const lines = [""];
  for (const word of text.split(" ")) {
    const line = lines.at(-1);
    if (line && line.length + 1 + word.length > room) lines.push(word);
    else lines[lines.length - 1] = line ? `${line} ${word}` : word;
  }
  const shown = lines.slice(0, LINES);
  if (lines.length > LINES) shown[LINES - 1] += "…";
  return shown.map((line) => (line.length > room ? `${line.slice(0, room - 1)}…` : line));
}

/** The curve from one box to another: to the next column, or around the boxes between two of the same column. */
function curve(a, b) {
  const [y1, y2] = [a.top + a.height / 2, b.top + b.height / 2];
  if (a.left === b.left) {
    const [x, bend] = [a.left + a.width, Math.min(GUTTER, 14 + Math.abs(y2 - y1) / 8) * 4 / 3];
    return `M${x} ${y1} C${x + bend} ${y1} ${x + bend} ${y2} ${x} ${y2}`;
  }
  const [x1, x2] = [a.left + a.width, b.left];
  const middle = (x1 + x2) / 2;
  return `M${x1} ${y1} C${middle} ${y1} ${middle} ${y2} ${x2} ${y2}`;
}

/** Draws the path of a snapshot into an element. */
export function drawPath(element, snapshot, visible) {
  const narrow = window.innerWidth < NARROW;
  const widths = narrow ? [284, 284, 284, 284] : [210, 250, 220, 190];
  const boxes = new Map();
  const drawn = [];
  let [left, bottom] = [0, 0];
  columnsOf(snapshot).forEach(([title, column], index) => {
    let top = narrow ? bottom + GAP : 0;
    const width = widths[index];
    drawn.push(shape("text", { x: left, y: top + 13, class: "column" }, title));
    top += LINE + 4;
    for (const { key, tone, lines } of column) {
      const wrapped = lines.flatMap(([text, tone]) => wrap(visible(text), width).map((line) => [line, tone]));
      const height = wrapped.length * LINE + 10;
      boxes.set(key, { left, top, width, height });
      drawn.push(shape("g", { class: `box ${tone}` }, shape("rect", { x: left, y: top, width, height, rx: 6 }),
        ...wrapped.map(([text, toneOfLine], line) => shape("text", { x: left + 8, y: top + 18 + line * LINE, class: toneOfLine }, text))));
      top += height + GAP;
    }
    bottom = Math.max(bottom, top);
    if (!narrow) left += width + 50;
  });
  const width = narrow ? 284 + GUTTER : left - 50;
  const edges = edgesOf(snapshot).flatMap(([from, to, tone]) => {
    const [a, b] = [boxes.get(from), boxes.get(to)];
    if (!a || !b) return [];
    return [shape("path", { class: `edge ${tone}`, d: curve(a, b) })];
  });
  const summary = snapshot.attachments.map((item) => `${item.volume} to ${item.node}: ${stateOf(item, snapshot).text}`).join("; ");
  element.replaceChildren(shape("svg", { viewBox: `-2 -2 ${width + 4} ${bottom + 4}`, role: "img",
    "aria-label": visible(`The path. ${summary || "No VolumeAttachments."}`) }, ...edges, ...drawn));
}
