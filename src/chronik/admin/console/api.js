// Calls to the node that served this page. Every failure is an Error with a sentence.

let csrfToken = null;  // of this session; whoever is logged in by a certificate or not at all has none

export class ApiError extends Error {
  constructor(status, code, message) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

export async function call(method, path, body, { timeout = 15000, raw = false, signal = null } = {}) {
  const headers = {};
  if (csrfToken && method !== "GET") headers["x-csrf-token"] = csrfToken;
  if (body !== undefined) headers["content-type"] = "application/json";
  const late = AbortSignal.timeout(timeout);
  let response;
  try {
    response = await fetch(path, {
      method, headers, body: body === undefined ? undefined : JSON.stringify(body), signal: signal ? AbortSignal.any([signal, late]) : late,
    });
  } catch (error) {
    throw new ApiError(0, "unreachable", error.name === "TimeoutError" ? `No answer within ${timeout / 1000} s.` : "The node cannot be reached.");
  }
  if (response.ok) return raw ? response : response.json();
  let failure = { code: String(response.status), message: `The node answered ${response.status}.` };
  try { failure = await response.json(); } catch { /* not from the node itself */ }
  if (response.status === 401 && path !== "/session") goToLogin();
  throw new ApiError(response.status, failure.code, failure.message);
}

export const get = (path, options) => call("GET", path, undefined, options);
export const post = (path, body, options) => call("POST", path, body, options);
export const remove = (path) => call("DELETE", path);

export const goToLogin = () => location.assign(`/console/login.html${location.hash}`);

// Who is logged in; null if a login is needed first, to which the browser is on its way then.
export async function loadSession() {
  try {
    const session = await get("/session");
    csrfToken = session.csrf_token;
    return session;
  } catch (error) {
    if (error.status === 401) goToLogin();
    return null;
  }
}

export async function logIn(proof) {
  csrfToken = (await post("/session", proof)).csrf_token;
}

export async function logOut() {
  await remove("/session");
  goToLogin();
}

export const topicPath = (name, rest = "") => `/admin/topics/${encodeURIComponent(name)}${rest}`;
