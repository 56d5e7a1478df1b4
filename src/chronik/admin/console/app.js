// The frame: sections, keyboard, theme, and the bar that says when what is shown is old.

import { audit } from "/console/audit.js";
import { goToLogin, loadSession, logOut } from "/console/api.js";
import { fill, h, showDialog, svg } from "/console/dom.js";
import { group, groups } from "/console/groups.js";
import { live, onLive, start } from "/console/live.js";
import { needsQuery } from "/console/needs_query.js";
import { overview } from "/console/overview.js";
import { search } from "/console/search.js";
import { sql } from "/console/sql.js";
import { topic } from "/console/topic.js";
import { create, topics } from "/console/topics.js";

const STALE_MS = 4000;
const SECTIONS = [
  ["", "Overview", "o", "M3 12l9-8 9 8M5 10v10h14V10"],
  ["topics", "Topics", "t", "M4 6h16M4 12h16M4 18h10"],
  ["groups", "Groups", "g", "M8 11a3 3 0 100-6 3 3 0 000 6zM2 20c0-3 3-5 6-5s6 2 6 5M16 11a3 3 0 100-6M17 15c3 0 5 2 5 5"],
  ["search", "Search", "s", "M11 18a7 7 0 100-14 7 7 0 000 14zM20 20l-4-4"],
  ["sql", "SQL", "q", "M4 6c0-3 16-3 16 0v12c0 3-16 3-16 0zM4 6c0 3 16 3 16 0M4 12c0 3 16 3 16 0"],
  ["audit", "Audit", "a", "M12 3l8 3v6c0 5-4 8-8 9-4-1-8-4-8-9V6zM9 12l2 2 4-4"],
];

const main = document.getElementById("main");
let leave = null;

function route() {
  const [section = "", ...rest] = location.hash.replace(/^#\/?/, "").split("/").map(decodeURIComponent);
  leave?.();
  leave = null;
  document.getElementById("dialog").close();
  const pages = {
    "": () => overview(main), topics: () => (rest[0] ? topic(main, rest[0], rest[1]) : topics(main)),
    groups: () => (rest[0] ? group(main, rest[0]) : groups(main)), search: () => needsQuery(main, "Search", () => search(main, rest[0], rest[1])),
    sql: () => needsQuery(main, "SQL", () => sql(main)), audit: () => audit(main),
  };
  const page = pages[section];
  if (page) leave = page();
  else fill(main, h("div.empty", null, h("b", null, "There is no such page"), h("a", { href: "#/" }, "Back to the overview")));
  const title = SECTIONS.find(([id]) => id === section)?.[1];
  document.title = title ? `${rest[0] ?? title}, chronik` : "chronik";
  fill(document.getElementById("nav"), SECTIONS.map(([id, name, key, path]) => h("a", { href: `#/${id}`, "aria-current": id === section && "page", title: `g ${key}` },
    svg("svg", { viewBox: "0 0 24 24", fill: "none", stroke: "currentColor", "stroke-width": "2", "stroke-linecap": "round", "stroke-linejoin": "round", "aria-hidden": "true" }, svg("path", { d: path })), name)));
  window.scrollTo(0, 0);
}

function theme(choice) {
  const dark = choice ? choice === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  document.documentElement.dataset.theme = dark ? "dark" : "light";
  document.getElementById("theme").textContent = dark ? "Light" : "Dark";
}

function switchTheme() {
  const next = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
  localStorage.setItem("chronik-theme", next);
  theme(next);
}

function stale() {
  const old = live.failedSince > 0 && Date.now() - Math.max(live.answeredAt, live.failedSince - 1000) > STALE_MS / 2;
  const bar = document.getElementById("stale");
  document.body.classList.toggle("is-stale", old);
  bar.hidden = !old;
  if (old) {
    const since = live.answeredAt ? `What you see is from ${new Date(live.answeredAt).toLocaleTimeString()}, ${Math.round((Date.now() - live.answeredAt) / 1000)} s ago.` : "Nothing has been heard yet.";
    bar.textContent = `This node does not answer. ${since} Trying again every second.`;
  }
  const where = document.getElementById("where");
  if (live.cluster) fill(where, h("div", null, h("span", { class: old ? "dot bad" : "dot ok" }), `node ${live.cluster.node_id}`), h("div", null, location.host), h("div", null, `controller ${live.cluster.controller_id < 0 ? "none" : live.cluster.controller_id}, term ${live.cluster.term}`));
}

const KEYS = [
  ["g o", "Overview"], ["g t", "Topics"], ["g g", "Groups"], ["g s", "Search"], ["g q", "SQL"], ["g a", "Audit"], ["/", "Go to the first field"], ["n", "New topic"], ["d", "Light or dark"], ["Ctrl Enter", "Send or run"], ["Esc", "Leave a field, close a dialog"], ["?", "This list"],
];
const help = () => showDialog(h("h1", null, "Keyboard"), h("div.keys", null, KEYS.map(([keys, what]) => [h("span", null, keys.split(" ").map((key) => [h("kbd", null, key), " "])), h("span", null, what)])));

const PAIR_MS = 2000;
let waitsForSection = 0;  // when g was pressed: by the event, since the page may be slow to hear of it
function onKey(event) {
  const typing = /^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName);
  if (event.key === "Escape" && typing) event.target.blur();
  if (typing || event.ctrlKey || event.metaKey || event.altKey || document.getElementById("dialog").open) return;
  if (waitsForSection && event.timeStamp - waitsForSection < PAIR_MS) {
    waitsForSection = 0;
    const found = SECTIONS.find(([, , key]) => key === event.key);
    if (found) { event.preventDefault(); location.hash = `#/${found[0]}`; return; }
  }
  const actions = { g: () => { waitsForSection = event.timeStamp; }, "/": () => main.querySelector("[data-focus]")?.focus(), n: create, d: switchTheme, "?": help };
  if (actions[event.key]) { event.preventDefault(); actions[event.key](); }
}

theme(localStorage.getItem("chronik-theme"));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => theme(localStorage.getItem("chronik-theme")));
document.getElementById("theme").addEventListener("click", switchTheme);
document.getElementById("help").addEventListener("click", help);
document.addEventListener("keydown", onKey);
window.addEventListener("hashchange", route);
onLive(stale);
setInterval(stale, 1000);
const session = await loadSession();
if (session) {
  fill(document.getElementById("who"), session.csrf_token
    ? [h("span", null, session.principal), h("button.ghost", { type: "button", onclick: logOut }, "Log out")]
    : session.is_anonymous ? h("button.ghost", { type: "button", onclick: goToLogin }, "Log in") : session.principal);
}
route();
start();
