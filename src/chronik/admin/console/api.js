// Calls to the node that served this page. Every failure is an Error with a sentence.

export const SQL_HISTORY = "chronik-sql";  // what the browser remembers of the user's queries

let csrfToken = null;  // of this session; whoever is logged in by a certificate or not at all has none

export class ApiError extends Error {
  constructor(status, code, message) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

const NOT_ALLOWED = "You may not do or see this: it takes a right that you have not been given.";

export async function call(method, path, body, { timeout = 15000, raw = false, signal = null } = {}) {
  const headers = {};
  if (csrfToken && method !== "GET") headers["x-csrf-token"] = csrfToken;
  if (body !== undefined) headers["content-type"] = "application/json";
  const late = AbortSignal.timeout(timeout);
  let response;
  try {
    response = await fetch(path, {
      method,
      headers,
      body: body === undefined ? undefined : JSON.stringify(body),
      signal: signal ? AbortSignal.any([signal, late]) : late,
    });
  } catch (error) {
    const isLate = error.name === "TimeoutError";
    throw new ApiError(0, "unreachable", isLate ? `No answer within ${timeout / 1000} s.` : "The node cannot be reached.");
  }
  if (response.ok) return raw ? response : response.json();
  let failure = { code: String(response.status), message: `The node answered ${response.status}.` };
  try {
    failure = await response.json();
  } catch { /* not from the node itself */ }
  if (response.status === 401 && path !== "/session") goToLogin();
  const message = failure.code.endsWith("_authorization_failed") ? NOT_ALLOWED : failure.message;
  throw new ApiError(response.status, failure.code, message);
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
    if (error.status === 401) {
      goToLogin();
      return null;
    }
    return { principal: "", is_anonymous: true, csrf_token: null, allowed: {} };
  }
}

export async function logIn(proof) {
  csrfToken = (await post("/session", proof)).csrf_token;
}

export async function logOut() {
  localStorage.removeItem(SQL_HISTORY);  // whoever sits down next is somebody else
  await remove("/session");
  goToLogin();
}

export const topicPath = (name, rest = "") => `/admin/topics/${encodeURIComponent(name)}${rest}`;
export const groupPath = (id, rest = "") => `/admin/groups/${encodeURIComponent(id)}${rest}`;
