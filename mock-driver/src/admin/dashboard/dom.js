// Elements, made without ever reading text as HTML.

/** An element with properties, attributes (aria-*, data-*, role, for, scope) and children. */
export function make(name, properties = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) {
    if (value === undefined || value === false) continue;
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (key === "class") element.className = value;
    else if (key.includes("-") || ["role", "for", "scope", "colspan", "list"].includes(key)) element.setAttribute(key, value);
    else element[key] = value;
  }
  element.append(...children.filter((child) => child !== undefined && child !== null));
  return element;
}

/** Sets a text only if it is another one, so that selections survive. */
export function say(element, text) {
  if (element.textContent !== String(text)) element.textContent = text;
}

/** Sets a class only if it is another one. */
export function dress(element, name) {
  if (element.className !== name) element.className = name;
}

/**
 * Makes the children of a parent those of a list of items. What stays is kept as an element, with its
 * focus and selection; `create` makes one with an `update` function, which is called for each item.
 */
export function sync(parent, items, key, create) {
  const old = new Map([...parent.children].map((child) => [child.dataset.key, child]));
  let next = parent.firstElementChild;
  for (const item of items) {
    const name = String(key(item));
    let child = old.get(name);
    if (child) {
      old.delete(name);
    } else {
      child = create(item);
      child.dataset.key = name;
    }
    if (child === next) next = next.nextElementSibling;
    else parent.insertBefore(child, next);
    child.update?.(item);
  }
  for (const gone of old.values()) {
    leave(gone);
    gone.remove();
  }
}

/** Moves the focus from an element that goes away to its panel, so that keyboard users continue there, not at the top of the page. */
export function leave(element) {
  if (element.contains(document.activeElement)) (element.closest('[role="tabpanel"]') ?? document.body).focus({ preventScroll: true });
}

/**
 * A table with a caption and columns; a column is its title or [title, class]. Gives table, body, caption and `row`, which makes a
 * row of cells. A cell is its content or [class, ...content]; the first one that is no control names the row.
 * Roles keep it a table where the stylesheet shows its rows as cards.
 */
export function table(caption, ...columns) {
  const body = make("tbody", { role: "rowgroup", onmouseover: ({ target }) => showWhole(target.closest("td, th")) });
  const titles = columns.map((column) => [column].flat());
  const heads = titles.map(([title, style]) => make("th", { scope: "col", role: "columnheader", class: style ?? "" },
    title || make("span", { class: "hidden" }, "Actions")));
  const title = make("caption", {}, caption);
  const head = make("thead", { role: "rowgroup" }, make("tr", { role: "row" }, ...heads));
  const whole = make("div", { class: "scroll" }, make("table", { role: "table" }, title, head, body));
  const name = titles.findIndex(([title]) => title !== "On" && title !== "Time");
  const row = (...cells) => make("tr", { role: "row" }, ...cells.map((cell, index) => {
    const [style, ...content] = Array.isArray(cell) ? cell : ["", cell];
    const properties = { class: style, "data-label": titles[index][0] || undefined };
    return index === name ? make("th", { ...properties, scope: "row", role: "rowheader" }, ...content)
      : make("td", { ...properties, role: "cell" }, ...content);
  }));
  return { whole, body, caption: title, row };
}

/** Gives a cell whose text is cut off the whole text as its title. */
function showWhole(cell) {
  if (cell) cell.title = cell.scrollWidth > cell.clientWidth ? cell.textContent : "";
}

/** Which rows of a table show more. `redraw` is called when that changes. */
export class Expanded {
  constructor(columns, redraw) {
    this.columns = columns;
    this.redraw = redraw;
    this.keys = new Set();
  }

  /** The button of a row. */
  button(key, label, text = "") {
    const button = make("button", { type: "button", class: "more", "aria-label": label, onclick: () => {
      this.keys.has(key) ? this.keys.delete(key) : this.keys.add(key);
      button.update();
      this.redraw();
    } }, text);
    button.update = () => button.setAttribute("aria-expanded", String(this.keys.has(key)));
    button.update();
    return button;
  }

  /** Makes the rows of a table's body: a `line` for each item, and below it `detail`, the content of a row, if it is expanded. */
  sync(body, items, keyOf, line, detail) {
    const rows = items.flatMap((item) => this.keys.has(String(keyOf(item))) ? [{ item }, { item, detail: true }] : [{ item }]);
    sync(body, rows, (row) => `${keyOf(row.item)}${row.detail ? " more" : ""}`, ({ item, detail: isDetail }) => {
      if (!isDetail) return updated(line(item), (row) => row.item);
      const content = detail(item);
      const row = make("tr", { class: "detail", role: "row" }, make("td", { role: "cell", colspan: String(this.columns) }, content));
      row.update = ({ item: now }) => content.update?.(now);
      return row;
    });
  }
}

function updated(element, item) {
  const { update } = element;
  element.update = update && ((row) => update(item(row)));
  return element;
}

/** A switch with its name. `flip` is given the wanted state. */
export function toggle(name, flip) {
  const button = make("button", {
    type: "button", role: "switch", "aria-checked": "false", "aria-label": name,
    onclick: () => flip(button.getAttribute("aria-checked") !== "true"),
  });
  button.set = (on) => button.setAttribute("aria-checked", String(on));
  return button;
}

/** A field with its label. */
export function field(label, input, style = "") {
  return make("label", { class: style }, label, input);
}

const BINARY = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];

/** A size as people read it. One with a unit, as in a fault file, is shown as it is. */
export function size(bytes) {
  if (typeof bytes === "string") return bytes;
  let unit = 0;
  while (bytes >= 1024 && unit < BINARY.length - 1) { bytes /= 1024; unit += 1; }
  return `${Number.isInteger(bytes) ? bytes : bytes.toFixed(1)} ${BINARY[unit]}`;
}

/** A time span as people read it. */
export function span(seconds) {
  if (seconds < 0.001) return `${Math.max(0, Math.round(seconds * 1e6))} µs`;
  if (seconds < 1) return `${(seconds * 1000).toFixed(seconds < 0.01 ? 1 : 0)} ms`;
  if (seconds < 120) return `${seconds.toFixed(1)} s`;
  return `${Math.floor(seconds / 60)} min ${Math.floor(seconds % 60)} s`;
}

const RETRIED = ["CANCELLED", "DEADLINE_EXCEEDED", "UNAVAILABLE", "RESOURCE_EXHAUSTED", "ABORTED"];

/** The look of a code: fine, worth another try, or final. */
export function tone(code) {
  if (code === "OK") return "good";
  return RETRIED.includes(code) ? "warn" : "bad";
}
