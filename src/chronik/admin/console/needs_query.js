// Search and SQL are an extra of the node: their pages say how to get it where it is not installed.

import { fill, h } from "/console/dom.js";
import { lacksQuery, live, refresh } from "/console/live.js";

// Draws the page once the node has said what it has; returns what to call when the page is left.
export function needsQuery(main, title, draw) {
  let leave = null;
  let hasLeft = false;
  const show = () => { if (!hasLeft) leave = lacksQuery() ? explain(main, title) : draw(); };
  if (live.answeredAt) show();
  else {
    fill(main, h("div.page-head", null, h("h1", null, title)), h("p.dim", null, "Loading…"));
    refresh().then(show);
  }
  return () => { hasLeft = true; leave?.(); };
}

function explain(main, title) {
  fill(main, h("div.page-head", null, h("h1", null, title)), h("div.card", null, h("div.empty", null,
    h("b", null, "Search and SQL are not installed on this node"), "Install them and start the node again:", h("div", null, h("pre", null, "pip install 'chronik[query]'")))));
  return null;
}
