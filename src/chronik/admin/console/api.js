// Calls to the node that served this page. Every failure is an Error with a sentence.

import { formDialog, h } from "/console/dom.js";

const KEY = "chronik-api-key";

export class ApiError extends Error {
  constructor(status, code, message) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

export async function call(method, path, body, { timeout = 15000, raw = false } = {}) {
  const headers = {};
  const key = sessionStorage.getItem(KEY);
  if (key) headers.authorization = `Bearer ${key}`;
  if (body !== undefined) headers["content-type"] = "application/json";
  let response;
  try {
    response = await fetch(path, {
      method, headers, body: body === undefined ? undefined : JSON.stringify(body), signal: AbortSignal.timeout(timeout),
    });
  } catch (error) {
    const late = error.name === "TimeoutError";
    throw new ApiError(0, "unreachable", late ? `No answer within ${timeout / 1000} s.` : "The node cannot be reached.");
  }
  if (response.ok) return raw ? response : response.json();
  let failure = { code: String(response.status), message: `The node answered ${response.status}.` };
  try { failure = await response.json(); } catch { /* not from the node itself */ }
  if (response.status === 401 && !document.getElementById("dialog").open) askForKey();
  throw new ApiError(response.status, failure.code, failure.message);
}

export const get = (path, options) => call("GET", path, undefined, options);
export const post = (path, body, options) => call("POST", path, body, options);
export const remove = (path) => call("DELETE", path);

export function askForKey() {
  const input = h("input", { name: "key", type: "password", autocomplete: "off", required: true });
  formDialog("API key", [
    h("p", null, "This node asks for its API key (CHRONIK_ADMIN_API_KEY). It is kept until this tab is closed."),
    h("label", null, "Key", input),
  ], "Use it", async () => {
    sessionStorage.setItem(KEY, input.value.trim());
    location.reload();
  });
}

export const topicPath = (name, rest = "") => `/admin/topics/${encodeURIComponent(name)}${rest}`;
