// Writing a record by hand.

import { useState } from "/console/vendor/preact.js";
import { post, topicPath } from "/console/api.js";
import { toast } from "/console/dialogs.js";
import { topicHref } from "/console/format.js";
import { live } from "/console/live.js";
import { Card, Empty, html } from "/console/parts.js";

export function Produce({ name }) {
  const [value, setValue] = useState("");
  const [sent, setSent] = useState([]);
  const [problem, setProblem] = useState(null);
  const [isBusy, setBusy] = useState(false);
  const note = checked(value.trim());
  const submit = async (event) => {
    event.preventDefault();
    const { key, partition, headers } = event.currentTarget.elements;
    setBusy(true);
    setProblem(null);
    try {
      const done = await post(topicPath(name, "/messages"), {
        value, key: key.value === "" ? null : key.value, partition: partition.value === "" ? null : Number(partition.value),
        headers: Object.fromEntries(pairs(headers.value)),
      });
      setSent((before) => [{ ...done, value }, ...before].slice(0, 50));
      toast(`Written to ${name}-${done.partition} at offset ${done.offset}`);
    } catch (error) {
      setProblem(error);
    } finally {
      setBusy(false);
    }
  };
  const onKeyDown = (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) event.currentTarget.requestSubmit();
  };
  const count = live.topics.find((one) => one.name === name)?.partition_count;
  return html`<div class="grid two">
    <form class="card stack" onSubmit=${submit} onKeyDown=${onKeyDown}>
      <div class="row fields"><label>Key<input name="key" placeholder="none" autocomplete="off" /></label>
        <label>Partition<input name="partition" type="number" min="0" max=${count ? count - 1 : undefined} placeholder="by key" /></label></div>
      <label>Value<textarea rows="9" spellcheck=${false} placeholder='{"customer": "ada", "total": 12.5}' data-focus value=${value} onInput=${(event) => setValue(event.target.value)}></textarea></label>
      <span class="field-note ${note.kind}">${note.text}</span>
      <label>Headers<input name="headers" placeholder="name=value, name=value" autocomplete="off" /></label>
      ${problem && html`<div class="error" role="alert">${problem.message}</div>`}
      <div class="row"><button class="primary" type="submit" disabled=${isBusy}>Send</button><span class="dim">Ctrl+Enter sends; acks=all</span></div>
    </form>
    <${Card} title="Sent from here" flush>${sent.length === 0 ? html`<${Empty} title="Nothing yet">What you send is listed here with its offset.<//>`
    : html`<table><thead><tr><th class="num">Partition</th><th class="num">Offset</th><th>Value</th></tr></thead><tbody>${sent.map((one) => html`<tr class="fresh" key=${`${one.partition}-${one.offset}`}>
      <td class="num">${one.partition}</td><td class="num"><a href=${topicHref(name, `/record/${one.partition}/${one.offset}`)}>${one.offset}</a></td><td class="clip mono">${one.value}</td></tr>`)}</tbody></table>`}<//>
  </div>`;
}

function checked(text) {
  if (!/^[[{]/.test(text)) return { text: text ? "text" : " ", kind: "" };
  try {
    JSON.parse(text);
    return { text: "valid JSON", kind: "" };
  } catch (error) {
    return { text: `not valid JSON: ${error.message}`, kind: "bad" };
  }
}

const pairs = (text) => text.split(",").map((one) => one.trim()).filter(Boolean).map((one) => {
  const at = one.indexOf("=");
  return at < 0 ? [one, ""] : [one.slice(0, at), one.slice(at + 1)];
});
