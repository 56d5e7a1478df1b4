// Full-text search: words, or a query in JSON.

import { useEffect, useState } from "/console/vendor/preact.js";
import { post } from "/console/api.js";
import { count, ms, time, topicHref } from "/console/format.js";
import { live } from "/console/live.js";
import { useLive } from "/console/load.js";
import { NeedsQuery } from "/console/needs_query.js";
import { Badge, Command, Empty, Json, Page, Problem, html } from "/console/parts.js";

const PAGE = 20;
const ORDERS = [["_score", "best first"], ["desc", "newest first"], ["asc", "oldest first"]];

export const Search = ({ first, second }) => html`<${NeedsQuery} title="Search"><${Body} topicName=${first} given=${second} /><//>`;

function queryOf({ words, order }, from) {
  const text = words.trim();
  const query = text ? { query_string: { query: text } } : { match_all: {} };
  const sort = order === "_score" ? undefined : [{ "@timestamp": order }];
  return { query, from, size: PAGE, highlight: { fields: { "*": {} } }, ...(sort && { sort }) };
}

function Body({ topicName = "", given = "" }) {
  useLive();
  const names = live.topics.filter((one) => one.is_searchable).map((one) => one.name);
  const [choice, setChoice] = useState({ words: given, topic: topicName, order: "_score", asJson: false, dsl: "" });
  const [found, setFound] = useState({ answer: null, error: null, from: 0, size: PAGE, took: 0, isBusy: false });
  const put = (given) => setChoice({ ...choice, ...given });
  const run = async (from) => {
    let wanted = queryOf(choice, from);
    setFound({ ...found, error: null, isBusy: true });
    const began = performance.now();
    try {
      if (choice.asJson) wanted = { ...parsed(choice.dsl), ...(from && { from }) };
      const answer = await post(choice.topic ? `/${encodeURIComponent(choice.topic)}/_search` : "/_search", wanted, { timeout: 30000 });
      setFound({ answer, error: null, from, size: wanted.size ?? 10, took: performance.now() - began, isBusy: false });
    } catch (error) {
      setFound({ ...found, answer: null, error, isBusy: false });
    }
  };
  useEffect(() => { if (given || topicName) run(0); }, []);
  const state = found.isBusy ? "loading" : found.error ? "error" : live.failedSince ? "stale" : found.answer?.hits.total.value ? "ready" : "empty";
  return html`<${Page} title="Search" sub="over topics with searchable=true" state=${state}>
    <form class="stack" role="search" onSubmit=${(event) => { event.preventDefault(); run(0); }}>
      <div class="row"><input class="grow words" type="search" placeholder='Words, "a phrase", field:value, total:>100  ( / )' aria-label="Search for" data-focus value=${choice.words} onInput=${(event) => put({ words: event.target.value })} />
        <select aria-label="Topic" value=${choice.topic} onChange=${(event) => put({ topic: event.target.value })}><option value="">all searchable topics</option>${names.map((name) => html`<option key=${name} value=${name}>${name}</option>`)}</select>
        <select aria-label="Order" value=${choice.order} onChange=${(event) => put({ order: event.target.value })}>${ORDERS.map(([id, title]) => html`<option key=${id} value=${id}>${title}</option>`)}</select>
        <label class="check"><input type="checkbox" checked=${choice.asJson} onChange=${(event) => put({ asJson: event.target.checked, dsl: JSON.stringify(queryOf(choice, 0), null, 2) })} />JSON</label>
        <button class="primary" type="submit" disabled=${found.isBusy}>Search</button></div>
      ${choice.asJson && html`<textarea rows="8" spellcheck=${false} aria-label="Query as JSON" value=${choice.dsl} onInput=${(event) => put({ dsl: event.target.value })}></textarea>`}
    </form>
    <${Status} found=${found} run=${run} />
    <${Problem} error=${found.error} />
    ${found.answer ? html`<${Hits} answer=${found.answer} />` : !found.isBusy && !found.error && html`<${Hint} some=${names.length > 0} />`}
  <//>`;
}

function parsed(text) {
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new Error(`The query is not JSON: ${error.message}`);
  }
}

function Hint({ some }) {
  if (some) return html`<div class="card"><${Empty} title="Search for something">Text anywhere in a record, or one JSON field with <code>field:value</code>.<//></div>`;
  return html`<div class="card"><${Empty} title="No topic is searchable yet">Set searchable=true in a topic's config, or create one with it:
    <${Command}>chronik topic create events --config searchable=true<//><//></div>`;
}

function Status({ found: { answer, from, size, took, isBusy }, run }) {
  const total = answer?.hits.total.value, shards = answer?._shards;
  return html`<div class="row status"><span class="dim" role="status">${isBusy ? "Searching…" : answer && `${count(total)} ${total === 1 ? "hit" : "hits"} in ${ms(answer.took)} (${ms(took)} until shown here)`}</span>
    ${shards?.failed > 0 && html`<${Badge} kind="bad">${shards.failed} of ${shards.total} partitions did not answer<//>`}
    ${answer?.lag > 0 && html`<${Badge} kind="warn">${count(answer.lag)} records not indexed yet<//>`}<span class="grow"></span>
    ${answer && from > 0 && html`<button type="button" onClick=${() => run(Math.max(0, from - size))}>Back</button>`}
    ${answer && from + size < total && html`<button type="button" onClick=${() => run(from + size)}>More</button>`}</div>`;
}

function Hits({ answer }) {
  if (answer.hits.total.value === 0) return html`<div class="card"><${Empty} title="Nothing found">Fewer words find more; field:value looks into one field only.<//></div>`;
  return html`<div class="card flush live">${answer.hits.hits.map((one) => html`<${Hit} key=${`${one._index}-${one.partition}-${one.offset}`} one=${one} />`)}</div>`;
}

function Hit({ one }) {
  const parts = Object.entries(one.highlight ?? {}).flatMap(([field, pieces]) => pieces.map((piece, index) => html`<div class="mono" key=${`${field} ${index}`}>${field !== "value" && html`<span class="dim">${field}: </span>`}${marked(piece)}</div>`));
  return html`<article class="hit">
    <div class="row"><a class="name" href=${topicHref(one._index)}>${one._index}</a><a href=${topicHref(one._index, `/record/${one.partition}/${one.offset}`)}><${Badge}>${one.partition} @ ${one.offset}<//></a>
      <span class="dim">${time(one.timestamp_ms)}</span>${one.key !== null && html`<${Badge}>key ${one.key}<//>`}<span class="grow"></span>${one._score !== null && html`<span class="faint num">${one._score.toFixed(2)}</span>`}</div>
    ${parts}
    <details open=${parts.length === 0}><summary class="dim">record</summary><pre tabindex="0">${typeof one._source === "object" ? html`<${Json} value=${one._source} />` : String(one._source)}</pre></details></article>`;
}

// Highlights come as text with <em>…</em>; anything else in them stays text.
const marked = (piece) => piece.split(/(<em>.*?<\/em>)/).map((part) => (part.startsWith("<em>") ? html`<mark>${part.slice(4, -5)}</mark>` : part));
