// The frame: sections, keyboard, theme, and the bar that says when what is shown is old.

import { html, render, useEffect, useReducer, useState } from "/console/vendor/preact.js";
import { goToLogin, loadSession, logOut } from "/console/api.js";
import { Above, closeDialog, isDialogOpen, openDialog } from "/console/dialogs.js";
import { clock } from "/console/format.js";
import { live, start } from "/console/live.js";
import { Session, useLive } from "/console/load.js";
import { Dot, Empty, Icon, Page } from "/console/parts.js";
import { Audit } from "/console/pages/audit.js";
import { Clients } from "/console/pages/clients.js";
import { Doctor } from "/console/pages/doctor.js";
import { Group, Groups } from "/console/pages/groups.js";
import { Moves } from "/console/pages/moves.js";
import { Nodes } from "/console/pages/nodes.js";
import { Overview } from "/console/pages/overview.js";
import { RecordsWay } from "/console/pages/record.js";
import { Search } from "/console/pages/search.js";
import { Sql } from "/console/pages/sql.js";
import { Topic } from "/console/pages/topic.js";
import { Topics, askForTopic } from "/console/pages/topics.js";
import { Transactions } from "/console/pages/transactions.js";

const STALE_MS = 2000;
const SECTIONS = [
  { id: "", name: "Overview", key: "o", group: "", path: "M3 12l9-8 9 8M5 10v10h14V10" },
  { id: "topics", name: "Topics", key: "t", group: "Data", path: "M4 6h16M4 12h16M4 18h10" },
  { id: "groups", name: "Groups", key: "g", group: "Data", path: "M8 11a3 3 0 100-6 3 3 0 000 6zM2 20c0-3 3-5 6-5s6 2 6 5M16 11a3 3 0 100-6M17 15c3 0 5 2 5 5" },
  { id: "transactions", name: "Transactions", key: "x", group: "Data", path: "M4 8h14l-4-4M20 16H6l4 4" },
  { id: "search", name: "Search", key: "s", group: "Data", path: "M11 18a7 7 0 100-14 7 7 0 000 14zM20 20l-4-4" },
  { id: "sql", name: "SQL", key: "q", group: "Data", path: "M4 6c0-3 16-3 16 0v12c0 3-16 3-16 0zM4 6c0 3 16 3 16 0M4 12c0 3 16 3 16 0" },
  { id: "nodes", name: "Nodes", key: "n", group: "Operate", path: "M4 5h16v6H4zM4 13h16v6H4zM8 8h.01M8 16h.01" },
  { id: "doctor", name: "Doctor", key: "d", group: "Operate", path: "M3 12h4l2-6 4 12 2-6h6" },
  { id: "clients", name: "Client metrics", key: "c", group: "Operate", path: "M4 20V10M10 20V4M16 20v-7M22 20H2" },
  { id: "audit", name: "Audit", key: "a", group: "Operate", path: "M12 3l8 3v6c0 5-4 8-8 9-4-1-8-4-8-9V6zM9 12l2 2 4-4" },
];

const where = () => location.hash.replace(/^#\/?/, "").split("/").map(decodeURIComponent);

function pageOf([section, name, part, ...rest]) {
  if (section === "topics" && name && part === "record") return html`<${RecordsWay} name=${name} partition=${Number(rest[0])} offset=${Number(rest[1])} />`;
  if (section === "topics" && name) return html`<${Topic} key=${name} name=${name} tab=${part} />`;
  if (section === "groups" && name) return html`<${Group} key=${name} id=${name} />`;
  if (section === "nodes" && name === "moves") return html`<${Moves} topic=${part} />`;
  const pages = { "": Overview, topics: Topics, groups: Groups, transactions: Transactions, search: Search, sql: Sql, nodes: Nodes, doctor: Doctor, clients: Clients, audit: Audit };
  const found = Object.hasOwn(pages, section) ? pages[section] : null;
  if (!found) return html`<${Page} title="No such page" state="error"><div class="card"><${Empty} title="There is no such page"><a href="#/">Back to the overview</a><//></div><//>`;
  return html`<${found} key=${section} first=${name} second=${part} />`;
}

function applyTheme(choice) {
  const dark = choice ? choice === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  document.documentElement.dataset.theme = dark ? "dark" : "light";
  return dark;
}

const KEYS = [
  ...SECTIONS.map(({ key, name }) => [`g ${key}`, name]),
  ["/", "Go to the first field"], ["n", "New topic"], ["d", "Light or dark"], ["Ctrl Enter", "Send or run"], ["Esc", "Leave a field, close a dialog"], ["?", "This list"],
];
const help = () => openDialog(html`<div class="stack"><h2 id="dialog-title">Keyboard</h2>
  <dl class="keys-list">${KEYS.map(([keys, what]) => html`<div key=${keys}><dt>${keys.split(" ").map((key) => html`<kbd>${key}</kbd> `)}</dt><dd>${what}</dd></div>`)}</dl>
  <p class="dim">The console uses <a href="/console/vendor/LICENSES.txt">free software</a>.</p>
  <div class="buttons"><button type="button" data-first onClick=${closeDialog}>Close</button></div></div>`);

// Old: nothing was heard for two seconds. Shown from then on, and counted.
function Stale() {
  const [, again] = useReducer((n) => n + 1, 0);
  useEffect(() => {
    const timer = setInterval(again, 1000);
    return () => clearInterval(timer);
  }, []);
  useLive();
  const isOld = live.failedSince > 0 && Date.now() - Math.max(live.answeredAt, live.failedSince - 1000) > STALE_MS;
  useEffect(() => { document.body.classList.toggle("is-stale", isOld); }, [isOld]);
  if (!isOld) return null;
  const since = live.answeredAt
    ? `What you see is from ${clock(live.answeredAt)}, ${Math.round((Date.now() - live.answeredAt) / 1000)} s ago.`
    : "Nothing has been heard yet.";
  return html`<div class="stale-bar" id="stale" role="status">This node does not answer. ${since} Trying again every second.</div>`;
}

function Side({ section, session, isDark, onTheme }) {
  const [isOpen, setOpen] = useState(false);
  const { cluster, failedSince } = useLive();
  useEffect(() => setOpen(false), [location.hash]);
  const groups = [...new Set(SECTIONS.map((one) => one.group))];
  return html`<header class="side ${isOpen ? "open" : ""}">
    <a class="brand" href="#/" aria-label="chronik, overview"><img src="/console/logo.svg" alt="" width="26" height="26" /><span>chronik</span></a>
    <button class="ghost menu" type="button" aria-expanded=${isOpen} aria-controls="nav" onClick=${() => setOpen(!isOpen)}>Menu</button>
    <nav id="nav" aria-label="Sections">${groups.map((group) => html`<div class="nav-group" key=${group}>
      ${group && html`<div class="nav-title">${group}</div>`}
      ${SECTIONS.filter((one) => one.group === group).map(({ id, name, key, path }) => html`<a key=${id} href=${`#/${id}`} title=${`g ${key}`}
        aria-current=${id === section ? "page" : undefined} onClick=${() => setOpen(false)}><${Icon} path=${path} />${name}</a>`)}</div>`)}</nav>
    <div class="side-foot">
      ${cluster && html`<div class="where"><div><${Dot} kind=${failedSince ? "bad" : "ok"} /> node ${cluster.node_id}</div><div>${location.host}</div>
        <div>controller ${cluster.controller_id < 0 ? "none" : cluster.controller_id}, term ${cluster.term}</div></div>`}
      <div class="row who" id="who"><${Who} session=${session} /></div>
      <div class="row">
        <button id="theme" class="ghost" type="button" title="Light or dark (d)" onClick=${onTheme}>${isDark ? "Light" : "Dark"}</button>
        <button id="help" class="ghost" type="button" title="Keyboard (?)" aria-label="Keyboard shortcuts" onClick=${help}>?</button>
        <a class="ghost" href="/docs" title="HTTP API">API</a>
      </div>
    </div>
  </header>`;
}

function Who({ session }) {
  if (session.csrf_token) return html`<span>${session.principal}</span><button class="ghost" type="button" onClick=${logOut}>Log out</button>`;
  return session.is_anonymous ? html`<button class="ghost" type="button" onClick=${goToLogin}>Log in</button>` : session.principal;
}

function App({ session }) {
  const [route, setRoute] = useState(where);
  const [isDark, setDark] = useState(() => applyTheme(localStorage.getItem("chronik-theme")));
  const switchTheme = () => {
    const next = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
    localStorage.setItem("chronik-theme", next);
    setDark(applyTheme(next));
  };
  useEffect(() => {
    const move = () => {
      closeDialog();
      setRoute(where());
      window.scrollTo(0, 0);
    };
    const scheme = matchMedia("(prefers-color-scheme: dark)"), follow = () => setDark(applyTheme(localStorage.getItem("chronik-theme")));
    const key = (event) => onKey(event, switchTheme);
    window.addEventListener("hashchange", move);
    scheme.addEventListener("change", follow);
    document.addEventListener("keydown", key);
    return () => {
      window.removeEventListener("hashchange", move);
      scheme.removeEventListener("change", follow);
      document.removeEventListener("keydown", key);
    };
  }, []);
  const section = SECTIONS.find((one) => one.id === route[0]);
  useEffect(() => { document.title = section ? `${route[1] || section.name}, chronik` : "chronik"; }, [route]);
  return html`<${Session.Provider} value=${session}>
    <${Side} section=${route[0]} session=${session} isDark=${isDark} onTheme=${switchTheme} />
    <${Stale} />
    <main id="main" tabindex="-1">${pageOf(route)}</main>
    <${Above} />
  <//>`;
}

const PAIR_MS = 2000;
let waitsForSection = 0;  // when g was pressed: by the event, since the page may be slow to hear of it
function onKey(event, switchTheme) {
  const target = event.composedPath()[0];
  const typing = /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName) || target.isContentEditable;
  if (event.key === "Escape" && typing && !event.defaultPrevented) target.blur();
  if (typing || event.ctrlKey || event.metaKey || event.altKey || isDialogOpen()) return;
  if (waitsForSection && event.timeStamp - waitsForSection < PAIR_MS) {
    waitsForSection = 0;
    const found = SECTIONS.find(({ key }) => key === event.key);
    if (found) {
      event.preventDefault();
      location.hash = `#/${found.id}`;
      return;
    }
  }
  const actions = {
    g: () => { waitsForSection = event.timeStamp; },
    "/": () => document.querySelector("main [data-focus]")?.focus(),
    n: askForTopic,
    d: switchTheme,
    "?": help,
  };
  if (actions[event.key]) {
    event.preventDefault();
    actions[event.key]();
  }
}

applyTheme(localStorage.getItem("chronik-theme"));
const session = await loadSession();
if (session) {
  render(html`<${App} session=${session} />`, document.getElementById("app"));
  start();
}
