// Full-text search: words, or a query in JSON.

import { post } from "/console/api.js";
import { badge, count, fill, h, json, ms, time } from "/console/dom.js";
import { live, onLive } from "/console/live.js";

const PAGE = 20;

export function search(main, topicName, given = "") {
  const words = h("input.grow", { type: "search", placeholder: 'Words, "a phrase", field:value, total:>100  ( / )', "aria-label": "Search for", value: given, "data-focus": true });
  const topic = h("select", { "aria-label": "Topic" });
  const order = h("select", { "aria-label": "Order" }, [["_score", "best first"], ["desc", "newest first"], ["asc", "oldest first"]].map(([value, title]) => h("option", { value }, title)));
  const dsl = h("textarea", { rows: 8, spellcheck: "false", "aria-label": "Query as JSON", hidden: true });
  const asJson = h("input", { type: "checkbox", onchange: () => { dsl.hidden = !asJson.checked; if (asJson.checked) dsl.value = JSON.stringify(body(0), null, 2); } });
  const status = h("span.dim"), hits = h("div"), problem = h("div.error", { hidden: true, role: "alert" }), pages = h("div.row");
  fill(main, h("div.page-head", null, h("h1", null, "Search"), h("span.sub", null, "over topics with searchable=true")),
    h("form.stack", { onsubmit: (event) => { event.preventDefault(); run(0); } },
      h("div.row", null, words, topic, order, h("label.check", null, asJson, "JSON"), h("button.primary", { type: "submit" }, "Search")), dsl),
    h("div.row", { style: { margin: "14px 0" } }, status, h("span.grow"), pages), problem, hits);
  let hinted = null;  // what the hint says: whether any topic is searchable; null while there is none
  draw();
  if (given || topicName) run(0);
  else hint();
  const stop = onLive(draw);
  return stop;

  function draw() {
    if (hinted !== null && hinted !== live.topics.some((one) => one.is_searchable)) hint();
    const names = live.topics.filter((one) => one.is_searchable).map((one) => one.name);
    if (topic.options.length === names.length + 1) return;
    const chosen = topic.value || topicName || "";
    fill(topic, h("option", { value: "" }, "all searchable topics"), names.map((name) => h("option", { value: name, selected: name === chosen }, name)));
  }

  function hint() {
    const some = hinted = live.topics.some((one) => one.is_searchable);
    fill(hits, h("div.card", null, h("div.empty", null, h("b", null, some ? "Search for something" : "No topic is searchable yet"),
      some ? "Text anywhere in a record, or one JSON field with field:value." : ["Set searchable=true in a topic's config, or create one with it:", h("div", null, h("pre", null, "chronik topic create events --config searchable=true"))])));
  }

  function body(from) {
    const text = words.value.trim();
    const query = text ? { query_string: { query: text } } : { match_all: {} };
    const sort = order.value === "_score" ? undefined : [{ "@timestamp": order.value }];
    return { query, from, size: PAGE, highlight: { fields: { "*": {} } }, ...(sort && { sort }) };
  }

  async function run(from) {
    problem.hidden = true;
    hinted = null;
    let wanted = body(from);
    try {
      if (asJson.checked) wanted = { ...JSON.parse(dsl.value), ...(from && { from }) };
    } catch (error) {
      problem.hidden = false;
      problem.textContent = `The query is not JSON: ${error.message}`;
      return;
    }
    status.textContent = "Searching…";
    const began = performance.now();
    try {
      const answer = await post(topic.value ? `/${encodeURIComponent(topic.value)}/_search` : "/_search", wanted, { timeout: 30000 });
      show(answer, from, wanted.size ?? 10, performance.now() - began);
    } catch (error) {
      status.textContent = "";
      problem.hidden = false;
      problem.textContent = error.message;
      fill(hits);
    }
  }

  function show(answer, from, size, took) {
    const total = answer.hits.total.value;
    const shards = answer._shards;
    fill(status, `${count(total)} ${total === 1 ? "hit" : "hits"} in ${ms(answer.took)} (${ms(took)} with the way here)`, " ", shards.failed > 0 && badge(`${shards.failed} of ${shards.total} partitions did not answer`, "bad"), answer.lag > 0 && badge(`${count(answer.lag)} records not indexed yet`, "warn"));
    fill(pages, from > 0 && h("button", { type: "button", onclick: () => run(Math.max(0, from - size)) }, "Back"), from + size < total && h("button", { type: "button", onclick: () => run(from + size) }, "More"));
    fill(hits, total === 0 ? h("div.card", null, h("div.empty", null, h("b", null, "Nothing found"), "Fewer words find more; field:value looks into one field only.")) : h("div.card.flush", null, answer.hits.hits.map(hit)));
  }

  function hit(one) {
    const parts = Object.entries(one.highlight ?? {}).flatMap(([field, pieces]) => pieces.map((piece) => h("div.mono", null, field !== "value" && h("span.dim", null, `${field}: `), marked(piece))));
    return h("article.hit", null,
      h("div.row", null, h("a.name", { href: `#/topics/${encodeURIComponent(one._index)}` }, one._index), badge(`${one.partition} @ ${one.offset}`), h("span.dim", null, time(one.timestamp_ms)), one.key !== null && badge(`key ${one.key}`), h("span.grow"), one._score !== null && h("span.faint.num", null, one._score.toFixed(2))),
      parts.length > 0 ? parts : null, h("details", { open: parts.length === 0 }, h("summary.dim", null, "record"), h("pre", null, typeof one._source === "object" ? json(one._source) : String(one._source))));
  }
}

// Highlights come as text with <em>…</em>; anything else in them stays text.
function marked(piece) {
  return piece.split(/(<em>.*?<\/em>)/).map((part) => (part.startsWith("<em>") ? h("mark", null, part.slice(4, -5)) : part));
}
