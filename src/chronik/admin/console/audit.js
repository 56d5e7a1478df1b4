// The audit log: who did what from where, the newest first.

import { get } from "/console/api.js";
import { badge, count, fill, h, time } from "/console/dom.js";

const PERIOD_MS = 5000;
const COLUMNS = ["Time", "Who", "From", "Action", "Resource", ""];

export function audit(main) {
  let entries = [], timer = 0, gone = false;
  const filter = h("input", { type: "search", placeholder: "Filter  ( / )", "aria-label": "Filter entries", "data-focus": true, oninput: () => draw() });
  const rows = h("tbody"), none = h("div.empty", { hidden: true }), problem = h("div.error", { hidden: true });
  fill(main, h("div.page-head", null, h("h1", null, "Audit"), h("span.grow"), filter), problem,
    h("div.card.flush.live", null, h("div.scroll", null, h("table", null, h("thead", null, h("tr", null, COLUMNS.map((name) => h("th", null, name)))), rows)), none));
  turn();
  return () => { gone = true; clearTimeout(timer); };

  async function turn() {
    try {
      const answer = await get("/admin/audit?limit=500");
      entries = answer.entries;
      problem.hidden = answer.dropped === 0;
      problem.textContent = `${count(answer.dropped)} entries of this node found no room and are lost.`;
      fill(none, h("b", null, "No entries"), answer.is_on ? "Refusals and changes appear here." : "The audit log is written where clients log in or ACLs decide.");
    } catch (error) {
      problem.hidden = false;
      problem.textContent = error.message;
    }
    if (gone) return;
    draw();
    timer = setTimeout(turn, PERIOD_MS);
  }

  function draw() {
    const wanted = filter.value.trim().toLowerCase();
    const shown = entries.filter((one) => [one.principal, one.host, one.action, one.resource].join(" ").toLowerCase().includes(wanted));
    fill(rows, shown.map((one) => h("tr", null, h("td", null, time(one.time_ms)), h("td", null, one.principal || "?"), h("td", null, `${one.host}, ${one.door}`), h("td", null, one.action), h("td", null, one.resource),
      h("td", null, badge(one.allowed ? "allowed" : "denied", one.allowed ? "ok" : "bad"), one.count > 1 && ` × ${count(one.count)}`))));
    none.hidden = shown.length > 0;
  }
}
