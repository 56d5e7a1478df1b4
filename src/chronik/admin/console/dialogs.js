// What stands above the page: toasts, and one dialog at a time.

import { html, useEffect, useReducer, useRef, useState } from "/console/vendor/preact.js";

let toasts = [], dialog = null, last = 0, redraw = () => {};

export function toast(text, kind = "") {
  const id = last += 1;
  toasts = [...toasts, { id, text, kind }].slice(-4);
  redraw();
  setTimeout(() => {
    toasts = toasts.filter((one) => one.id !== id);
    redraw();
  }, kind === "bad" ? 7000 : 3500);
}

// `content` is drawn inside the dialog. `closeDialog` takes it away, as Esc does.
export function openDialog(content) {
  dialog = { content, key: last += 1, opener: document.activeElement };
  redraw();
}

export function closeDialog() {
  const opener = dialog?.opener;
  dialog = null;
  redraw();
  if (opener?.isConnected) opener.focus();
}

export const isDialogOpen = () => dialog !== null;

export function Above() {
  const [, again] = useReducer((n) => n + 1, 0);
  redraw = again;
  return html`
    <div class="toasts" id="toasts" role="status" aria-live="polite">
      ${toasts.map((one) => html`<div key=${one.id} class="toast ${one.kind}">${one.text}</div>`)}
    </div>
    ${dialog && html`<${Frame} key=${dialog.key} content=${dialog.content} />`}`;
}

function Frame({ content }) {
  const box = useRef(null);
  useEffect(() => {
    box.current.showModal();
    box.current.querySelector("[data-first], input, select, textarea")?.focus();
  }, []);
  return html`<dialog id="dialog" ref=${box} aria-labelledby="dialog-title" onClose=${closeDialog}>${content}</dialog>`;
}

export const showText = (title, text) => openDialog(html`<div class="stack">
  <h2 id="dialog-title">${title}</h2><pre tabindex="0">${text}</pre>
  <div class="buttons"><button type="button" data-first onClick=${closeDialog}>Close</button></div></div>`);

// A form in a dialog. `run` may throw: its message is shown and the dialog stays. `danger` colours the button.
export function Form({ title, action, run, danger = false, ready = true, wide = false, children }) {
  const [problem, setProblem] = useState(null);
  const [isBusy, setBusy] = useState(false);
  const submit = async (event) => {
    event.preventDefault();
    if (isBusy || !ready) return;
    setBusy(true);
    setProblem(null);
    try {
      await run(event.target);
      closeDialog();
    } catch (error) {
      setProblem(error);
      setBusy(false);
    }
  };
  return html`<form class="stack ${wide ? "wide" : ""}" onSubmit=${submit}>
    <h2 id="dialog-title">${title}</h2>
    ${children}
    ${problem && html`<div class="error" role="alert">${problem.message}</div>`}
    <div class="buttons">
      <button type="button" onClick=${closeDialog}>Cancel</button>
      <button type="submit" class=${danger ? "danger solid" : "primary"} disabled=${isBusy || !ready} aria-busy=${isBusy}>${isBusy ? "Working…" : action}</button>
    </div>
  </form>`;
}

// Asks before something dangerous: what will happen stands in `children`; `typed` has to be typed if given.
export function Confirm({ title, action, run, typed = null, what = "name", children }) {
  const [text, setText] = useState("");
  const wrong = `That is not the ${what}.`;
  return html`<${Form} title=${title} action=${action} danger run=${async () => {
    if (typed !== null && text.trim() !== typed) throw new Error(wrong);
    await run();
  }}>
    <div>${children}</div>
    ${typed !== null && html`<label>Type the ${what} to confirm
      <input value=${text} onInput=${(event) => setText(event.target.value)} required autocomplete="off" placeholder=${typed} /></label>`}
  <//>`;
}
