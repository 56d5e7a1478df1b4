// The SQL editor: CodeMirror with highlighting and completion of tables and columns.
//
// It lives in a shadow root: there CodeMirror adds its styles by adoptedStyleSheets, which the page's
// Content-Security-Policy allows, where it would otherwise need style elements, which it forbids.

import { html, useEffect, useRef } from "/console/vendor/preact.js";

const LIBRARY = "/console/vendor/codemirror.js";

// Keywords are offered in capitals, tables with the quotes that their names need.
function language(cm, tables) {
  const schema = Object.fromEntries(tables.map((table) => [table.name, table.columns.map((column) => ({ label: column.name, detail: column.type.toLowerCase(), type: "property" }))]));
  return cm.sql({ dialect: cm.PostgreSQL, schema, upperCaseKeywords: true });
}

function theme(cm) {
  const { tags } = cm;
  const style = cm.HighlightStyle.define([
    { tag: [tags.keyword, tags.operatorKeyword, tags.modifier], color: "var(--n1)", fontWeight: "600" },
    { tag: [tags.string, tags.special(tags.string)], color: "var(--n0)" }, { tag: [tags.number, tags.bool, tags.null], color: "var(--n2)" },
    { tag: tags.typeName, color: "var(--n6)" }, { tag: [tags.lineComment, tags.blockComment], color: "var(--faint)", fontStyle: "italic" },
    { tag: [tags.operator, tags.punctuation], color: "var(--dim)" }, { tag: [tags.name, tags.standard(tags.name)], color: "var(--text)" },
  ]);
  return [cm.syntaxHighlighting(style), cm.EditorView.theme({
    "&": { fontSize: "13px", backgroundColor: "var(--surface)", color: "var(--text)", border: "1px solid var(--line)", borderRadius: "8px" },
    "&.cm-focused": { outline: "2px solid var(--accent)", outlineOffset: "-1px" },
    ".cm-scroller": { fontFamily: "var(--mono)", lineHeight: "1.6", minHeight: "132px", maxHeight: "40vh" },
    ".cm-content": { padding: "10px 12px", caretColor: "var(--text)" }, ".cm-cursor": { borderLeftColor: "var(--text)" },
    ".cm-placeholder": { color: "var(--faint)" },
    ".cm-selectionBackground, &.cm-focused .cm-selectionBackground": { background: "var(--accent-soft) !important" },
    ".cm-matchingBracket, &.cm-focused .cm-matchingBracket": { backgroundColor: "var(--accent-soft)", outline: "none" },
    ".cm-tooltip": { backgroundColor: "var(--surface)", color: "var(--text)", border: "1px solid var(--line)", borderRadius: "8px", overflow: "hidden", boxShadow: "0 8px 24px rgb(0 0 0 / .18)" },
    ".cm-tooltip-autocomplete > ul": { fontFamily: "var(--mono)", maxHeight: "14em" },
    ".cm-tooltip-autocomplete ul li[aria-selected]": { backgroundColor: "var(--accent-soft)", color: "var(--accent-text)" },
    ".cm-completionDetail": { color: "var(--dim)", fontStyle: "normal" },
  })];
}

// `handle` is a ref: it gets {text(), set(text), insert(text)} once the editor is there.
export function Editor({ initial, tables, onRun, handle, onReady }) {
  const host = useRef(null), view = useRef(null), parts = useRef(null), run = useRef(onRun);
  run.current = onRun;
  useEffect(() => {
    let isGone = false;
    import(LIBRARY).then((cm) => {
      if (isGone) return;
      const root = host.current.shadowRoot ?? host.current.attachShadow({ mode: "open" });
      const schema = new cm.Compartment();
      const byKeys = cm.keymap.of([...cm.closeBracketsKeymap, ...cm.completionKeymap, ...cm.historyKeymap, ...cm.defaultKeymap]);
      const closeCompletion = cm.completionKeymap.find((one) => one.key === "Escape").run;  // else what it offers stays above the result
      const runKey = cm.Prec.highest(cm.keymap.of([{ key: "Mod-Enter", run: (at) => { closeCompletion(at); run.current(); return true; } }]));
      view.current = new cm.EditorView({
        root, parent: root,
        state: cm.EditorState.create({ doc: initial, extensions: [
          runKey, cm.history(), cm.closeBrackets(), cm.bracketMatching(), cm.autocompletion({ selectOnOpen: false, icons: false }), byKeys, cm.EditorView.lineWrapping,
          schema.of(language(cm, tables)), theme(cm), cm.placeholder("SELECT * FROM orders ORDER BY timestamp DESC LIMIT 20"),
          cm.EditorView.contentAttributes.of({ "aria-label": "SQL", spellcheck: "false", autocapitalize: "off", "data-focus": "" }),
        ] }),
      });
      parts.current = { cm, schema };
      handle.current = {
        text: () => view.current.state.doc.toString(),
        set: (text) => view.current.dispatch({ changes: { from: 0, to: view.current.state.doc.length, insert: text }, selection: { anchor: text.length } }),
        insert: (text) => { view.current.dispatch(view.current.state.replaceSelection(text)); view.current.focus(); },
        focus: () => view.current.focus(),
      };
      onReady?.();
    });
    return () => { isGone = true; view.current?.destroy(); };
  }, []);
  useEffect(() => {
    if (parts.current) view.current.dispatch({ effects: parts.current.schema.reconfigure(language(parts.current.cm, tables)) });
  }, [tables]);
  return html`<div class="editor" ref=${host}></div>`;
}
