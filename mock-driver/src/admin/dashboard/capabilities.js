// Capabilities.

import { change, get, part } from "./api.js";
import { make, say, sync, toggle } from "./dom.js";

export function capabilities(panel, refresh) {
  const list = make("ul", { class: "switches" });
  panel.append(make("p", { class: "quiet" },
    "Clients that cached GetPluginCapabilities or *GetCapabilities may not notice a change."), make("br"), list);
  return async () => {
    sync(list, await get("/capabilities"), (capability) => capability.name, (capability) => line(capability, refresh));
  };
}

function line(capability, refresh) {
  const button = toggle(capability.name, async (enabled) => {
    const done = `${enabled ? "Enabled" : "Disabled"} ${capability.name}`;
    if (await change("PUT", `/capabilities/${part(capability.name)}`, { enabled }, done)) refresh();
  });
  const note = make("p");
  const item = make("li", {}, button, make("span", { class: "id" }, capability.name), note);
  item.update = (now) => {
    button.set(now.enabled);
    say(note, now.enabled === now.default ? "" : now.enabled ? "enabled (default: disabled)" : "disabled (default: enabled)");
  };
  return item;
}
