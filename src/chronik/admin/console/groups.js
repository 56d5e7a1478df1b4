// Consumer groups: who reads, how far behind, and how that went lately.

import { chart, spark } from "/console/charts.js";
import { badge, count, fill, h, short } from "/console/dom.js";
import { live, onLive, watchGroups } from "/console/live.js";

const kind = (state) => ({ Stable: "ok", Empty: "", Dead: "bad" })[state] ?? "warn";

export function groups(main) {
  const filter = h("input", { type: "search", placeholder: "Filter groups  ( / )", "aria-label": "Filter groups", "data-focus": true, oninput: () => draw() });
  const rows = h("tbody"), none = h("div.empty", { hidden: true }), problem = h("div.error", { hidden: true });
  fill(main, h("div.page-head", null, h("h1", null, "Groups"), h("span.grow"), filter), problem,
    h("div.card.flush.live", null, h("div.scroll", null, h("table", null, h("thead", null, h("tr", null, h("th", null, "Group"), h("th", null, "State"), h("th.num", null, "Members"), h("th.num.hide-narrow", null, "Partitions"), h("th.num", null, "Lag"), h("th.hide-narrow", null, "Lag over time"), h("th.num.hide-narrow", null, "Coordinator"))), rows)), none));
  watchGroups(true);
  draw();
  const stop = onLive(draw);
  return () => { stop(); watchGroups(false); };

  function draw() {
    const answer = live.groups;
    problem.hidden = !answer?.problem;
    problem.textContent = answer?.problem ?? "";
    const shown = (answer?.groups ?? []).filter((one) => one.group_id.toLowerCase().includes(filter.value.trim().toLowerCase()));
    fill(rows, shown.map((one) => {
      const href = `#/groups/${encodeURIComponent(one.group_id)}`;
      return h("tr.link", { onclick: (event) => { if (event.target.tagName !== "A") location.hash = href; } }, h("td", null, h("a.name", { href }, one.group_id)), h("td", null, badge(one.state, kind(one.state))), h("td.num", null, one.members.length), h("td.num.hide-narrow", null, one.partitions.length),
        h("td.num", null, count(one.lag)), h("td.hide-narrow", null, spark(live.groupLag.get(one.group_id) ?? [])), h("td.num.hide-narrow", null, one.coordinator));
    }));
    none.hidden = shown.length > 0 || !answer;
    fill(none, h("b", null, "No groups"), "A group is there as soon as a consumer joins it or commits an offset.");
  }
}

export function group(main, groupId) {
  const flags = h("span.row"), members = h("tbody"), partitions = h("tbody"), missing = h("div.error", { hidden: true });
  const lag = chart("Lag", (n) => short(n));
  fill(main, h("div.page-head", null, h("h1", null, h("a.crumb", { href: "#/groups" }, "Groups"), h("span.crumb", null, " / "), groupId), flags), missing,
    h("div.stack.live", null, lag.box,
      h("div.card.flush", null, h("div.head", null, h("h2", null, "Partitions")), h("div.scroll", null, h("table", null, h("thead", null, h("tr", null, h("th", null, "Topic"), h("th.num", null, "Partition"), h("th.num", null, "Committed"), h("th.num.hide-narrow", null, "End"), h("th.num", null, "Lag"), h("th.hide-narrow", null, ""), h("th.hide-narrow", null, "Read by"))), partitions))),
      h("div.card.flush", null, h("div.head", null, h("h2", null, "Members")), h("div.scroll", null, h("table", null, h("thead", null, h("tr", null, h("th", null, "Client"), h("th.hide-narrow", null, "Member"), h("th", null, "Host"), h("th.num", null, "Partitions"))), members)))));
  watchGroups(true);
  draw();
  const stop = onLive(draw);
  return () => { stop(); watchGroups(false); };

  function draw() {
    const found = live.groups?.groups?.find((one) => one.group_id === groupId);
    missing.hidden = Boolean(found) || !live.groups;
    missing.textContent = live.groups?.problem ?? "This group is not there, or its coordinator does not answer.";
    if (!found) return;
    const most = Math.max(1, ...found.partitions.map((one) => one.lag ?? 0));
    fill(flags, badge(found.state, kind(found.state)), badge(`${found.group_type}${found.assignor ? `, ${found.assignor}` : ""}`), badge(`coordinator ${found.coordinator}`));
    lag.draw([{ name: "records", color: "var(--n2)", points: live.groupLag.get(groupId) ?? [] }]);
    fill(partitions, found.partitions.map((one) => h("tr", null, h("td", null, h("a", { href: `#/topics/${encodeURIComponent(one.topic)}` }, one.topic)), h("td.num", null, one.partition), h("td.num", null, count(one.committed_offset)), h("td.num.hide-narrow", null, count(one.end_offset)), h("td.num", null, count(one.lag)),
      h("td.hide-narrow", { style: { width: "22%" } }, h("div.bar", null, h("i", { style: { width: `${((one.lag ?? 0) / most) * 100}%`, background: "var(--n2)" } }))), h("td.mono.hide-narrow", null, one.member_id ?? "–"))));
    fill(members, found.members.length ? found.members.map((one) => h("tr", null, h("td", null, one.client_id), h("td.mono.hide-narrow", null, one.member_id), h("td.mono", null, one.host), h("td.num", null, one.partition_count))) : h("tr", null, h("td.dim", { colspan: 4 }, "Nobody is reading.")));
  }
}
