// The picture of the path: pods on nodes, VolumeAttachments, the attacher, the array.

const SVG = "http://www.w3.org/2000/svg";
const LINE = 18;
const GAP = 12;
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
function stateOf(item, snapshot) {
  if (item.error) return { tone: "bad", text: `${item.deleting ? "detach" : "attach"} fails: ${item.error}` };
  if (item.deleting) return { tone: "busy", text: "detaching" };
  if (item.attached) return { tone: "good", text: "attached" };
  if (snapshot.lanes === null) return { tone: "bad", text: "waits for the attacher" };
  if (snapshot.array === null) return { tone: "bad", text: "waits for the driver" };
  return { tone: "busy", text: "attaching" };
}

/** The boxes of each column; a box has a key, lines of [text, tone], and a tone. */
function columnsOf(snapshot) {
  const nodes = snapshot.nodes.map((node) => {
    const pods = snapshot.pods.filter((pod) => pod.node === node.name);
    const tone = node.outOfService || !node.ready ? "bad" : "plain";
    const state = node.outOfService ? ", out of service" : node.ready ? "" : ", not ready";
    return { key: `node ${node.name}`, tone, lines: [[`node ${node.name}${state}`, "title"],
      ...pods.map((pod) => [`${pod.name}: ${pod.volumes.join(", ") || "no volume"}`, pod.phase === "Running" ? "good" : "busy"])] };
  });
  const pending = snapshot.pods.filter((pod) => !pod.node);
  if (pending.length) {
    nodes.push({ key: "pending", tone: "busy", lines: [["not scheduled", "title"], ...pending.map((pod) => [pod.name, "busy"])] });
  }
  const attachments = snapshot.attachments.map((item) => {
    const { tone, text } = stateOf(item, snapshot);
    return { key: `va ${item.name}`, tone, lines: [[`${item.volume} → ${item.node}`, "title"], [text, tone]] };
  });
  const lanes = (snapshot.lanes ?? []).filter(({ running, ready, waiting }) => running + ready + waiting > 0);
  const attacher = { key: "attacher", tone: snapshot.lanes === null ? "bad" : lanes.length ? "busy" : "plain", lines: [["attacher", "title"],
    ...(snapshot.lanes === null ? [["does not respond", "bad"]] : lanes.length === 0 ? [["idle", "plain"]] : lanes.map((lane) => [
      `${lane.lane}: ${lane.running} running, ${lane.ready + lane.waiting} waiting`, lane.waiting ? "bad" : "busy"]))] };
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

/** Cuts a text that is too long for its box; the tables below have it whole. */
const cut = (text, width) => (text.length * 7.2 > width - 16 ? `${text.slice(0, Math.floor((width - 16) / 7.2) - 1)}…` : text);

/** Draws the path of a snapshot into an element. */
export function drawPath(element, snapshot, visible) {
  const narrow = window.innerWidth < NARROW;
  const widths = narrow ? [340, 340, 340, 340] : [210, 250, 220, 190];
  const boxes = new Map();
  const drawn = [];
  let [left, bottom] = [0, 0];
  columnsOf(snapshot).forEach(([title, column], index) => {
    let top = narrow ? bottom + GAP : 0;
    const width = widths[index];
    drawn.push(shape("text", { x: left, y: top + 13, class: "column" }, title));
    top += LINE + 4;
    for (const { key, tone, lines } of column) {
      const height = lines.length * LINE + 10;
      boxes.set(key, { left, top, width, height });
      drawn.push(shape("g", { class: `box ${tone}` }, shape("rect", { x: left, y: top, width, height, rx: 6 }),
        ...lines.map(([text, toneOfLine], line) => shape("text", { x: left + 8, y: top + 18 + line * LINE, class: toneOfLine },
          cut(visible(text), width)))));
      top += height + GAP;
    }
    bottom = Math.max(bottom, top);
    if (!narrow) left += width + 50;
  });
  const width = narrow ? 340 : left - 50;
  const edges = (narrow ? [] : edgesOf(snapshot)).flatMap(([from, to, tone]) => {
    const [a, b] = [boxes.get(from), boxes.get(to)];
    if (!a || !b) return [];
    const [x1, y1, x2, y2] = [a.left + a.width, a.top + a.height / 2, b.left, b.top + b.height / 2];
    const middle = (x1 + x2) / 2;
    return [shape("path", { class: `edge ${tone}`, d: `M${x1} ${y1} C${middle} ${y1} ${middle} ${y2} ${x2} ${y2}` })];
  });
  const summary = snapshot.attachments.map((item) => `${item.volume} to ${item.node}: ${stateOf(item, snapshot).text}`).join("; ");
  element.replaceChildren(shape("svg", { viewBox: `-2 -2 ${width + 4} ${bottom + 4}`, role: "img",
    "aria-label": visible(`The path. ${summary || "No VolumeAttachments."}`) }, ...edges, ...drawn));
}
