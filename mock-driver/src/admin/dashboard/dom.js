// Elements, made without ever reading text as HTML.

/** An element with properties, attributes (aria-*, data-*, role, for, scope) and children. */
export function make(name, properties = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) {
    if (value === undefined || value === false) continue;
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (key === "class") element.className = value;
    else if (key.includes("-") || ["role", "for", "scope", "colspan"].includes(key)) element.setAttribute(key, value);
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
    // Keyboard users continue here, not at the top of the page.
    if (gone.contains(document.activeElement)) (gone.closest('[role="tabpanel"]') ?? document.body).focus({ preventScroll: true });
    gone.remove();
  }
}

/** A table with a caption and columns; a column is its title or [title, class]. Gives table and body. */
export function table(caption, ...columns) {
  const body = make("tbody");
  const heads = columns.map((column) => {
    const [title, style] = [column].flat();
    return make("th", { scope: "col", class: style ?? "" }, title);
  });
  const title = make("caption", {}, caption);
  const whole = make("div", { class: "scroll" }, make("table", {}, title, make("thead", {}, make("tr", {}, ...heads)), body));
  return { whole, body, caption: title };
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

const BINARY = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

/** A size as people read it. */
export function size(bytes) {
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
