// Requests, and messages about their results.

import { say } from "./dom.js";

const SHOWN_FOR = 6000;
// What an input of the dialog takes. Larger numbers would not be sent as they were written.
const COUNTABLE = { min: "0", max: String(Number.MAX_SAFE_INTEGER), step: "1", pattern: "", title: "A whole number, 0 or more" };
const SOME_TEXT = { min: "", max: "", step: "", pattern: ".*\\S.*", title: "" };
const timers = new Map();

/** A part of a path. */
export const part = encodeURIComponent;

/** Parameters of a query, those without a value left out. */
export function query(parameters) {
  const given = Object.entries(parameters).filter(([, value]) => value !== undefined && value !== null && value !== "");
  return given.length ? `?${new URLSearchParams(given)}` : "";
}

/** Reads something. */
export async function get(path) {
  return answer(await fetch(`/api/v1${path}`));
}

/** Sends a change and announces its result or error. A text is YAML. Returns whether it succeeded. */
export async function change(method, path, body, done) {
  try {
    const result = await send(method, path, body);
    announce("done", done);
    return result ?? true;
  } catch (error) {
    announce("failed", error.message);
    return false;
  }
}

/** Sends a change. A text is YAML. The error has the refusal's `field`. */
export async function send(method, path, body) {
  const request = { method };
  if (method !== "DELETE") {
    const isYaml = typeof body === "string";
    request.headers = { "content-type": isYaml ? "application/yaml" : "application/json" };
    request.body = isYaml ? body : JSON.stringify(body ?? {});
  }
  return answer(await fetch(`/api/v1${path}`, request));
}

/** Shows a text for a while, where screen readers hear it. */
export function announce(where, text) {
  const element = document.getElementById(where);
  say(element, text);
  clearTimeout(timers.get(where));
  timers.set(where, setTimeout(() => say(element, ""), SHOWN_FOR));
}

/**
 * Asks before something is broken. Gives the input, or true; false if the answer is no. An input is a text of more
 * than blanks, or with `number` a whole number, which it then gives; the dialog stays until it is one.
 */
export function ask(title, text, yes, input) {
  const dialog = document.getElementById("ask");
  const field = document.getElementById("ask-input");
  say(document.getElementById("ask-title"), title);
  say(document.getElementById("ask-text"), text);
  say(document.getElementById("ask-yes"), yes);
  document.getElementById("ask-label").hidden = !input;
  say(document.getElementById("ask-name"), input?.label ?? "");
  field.type = input?.number ? "number" : "text";
  for (const [name, value] of Object.entries(input?.number ? COUNTABLE : SOME_TEXT)) field[name] = value;
  field.value = input?.value ?? "";
  field.required = Boolean(input);
  dialog.returnValue = "";
  dialog.showModal();
  // Enter in the field means yes, not the first button of the form.
  field.onkeydown = (event) => {
    if (event.key === "Enter" && !event.isComposing) {
      event.preventDefault();
      document.getElementById("ask-yes").click();
    }
  };
  (input ? field : document.getElementById("ask-yes")).focus();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => {
      const agreed = dialog.returnValue === "yes";
      const given = () => (input.number ? field.valueAsNumber : field.value.trim());
      resolve(agreed && input ? given() : agreed);
    }, { once: true });
  });
}

async function answer(response) {
  const text = await response.text();
  let content;
  try {
    content = text ? JSON.parse(text) : undefined;
  } catch {
    throw new Error(`the response is not JSON (${response.status})`);
  }
  if (!response.ok) {
    const error = new Error(content?.message ?? `the request failed (${response.status})`);
    throw Object.assign(error, { field: content?.field });
  }
  return content;
}
