// Pages of a long list, by the driver's cursors.

import { make, say } from "./dom.js";

/** Buttons for the pages of a list and the position in it. `turn` is called when the position changes. */
export class Pager {
  constructor(what, turn) {
    this.what = what;
    this.cursors = [];
    this.next = undefined;
    this.position = make("span", { class: "quiet", role: "status" });
    this.back = make("button", { type: "button", onclick: () => { this.cursors.pop(); turn(); } }, "Previous");
    this.on = make("button", { type: "button", onclick: () => this.forward(turn) }, "Next");
    this.whole = make("div", { class: "bar push" }, this.position, this.back, this.on);
    this.seen = [0];
  }

  /** Where the page begins. */
  get after() {
    return this.cursors.at(-1);
  }

  /** One page on; until that is drawn there is none behind it. */
  forward(turn) {
    if (this.next === undefined) return;
    this.cursors.push(this.next);
    this.next = undefined;
    turn();
  }

  /** Back to the first page. */
  reset() {
    this.cursors = [];
  }

  /** Shows the position in the list. */
  update(page) {
    this.next = page.next;
    const depth = this.cursors.length;
    this.seen[depth + 1] = (this.seen[depth] ?? 0) + page.items.length;
    const from = this.seen[depth] ?? 0;
    const range = page.items.length ? `${from + 1}–${from + page.items.length} of ` : "";
    say(this.position, `${range}${page.matched} ${this.what}`);
    this.back.disabled = depth === 0;
    this.on.disabled = !page.next;
  }
}
