// Search and SQL are an extra of the node: their pages say how to get it where it is not installed.

import { lacksQuery } from "/console/live.js";
import { liveState, useLive } from "/console/load.js";
import { Command, Empty, Loaded, Page, html, stateOf } from "/console/parts.js";

// Draws the page once the node has said what it has.
export function NeedsQuery({ title, children }) {
  useLive();
  const state = liveState();
  if (state.value === null) return html`<${Page} title=${title} state=${stateOf(state)}><${Loaded} of=${state} /><//>`;
  if (!lacksQuery()) return children;
  return html`<${Page} title=${title} state="empty"><div class="card"><${Empty} title="Search and SQL are not installed on this node">
    Install them and start the node again:<${Command}>pip install 'chronik[query]'<//><//></div><//>`;
}
