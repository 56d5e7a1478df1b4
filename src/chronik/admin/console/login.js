// The login page: a user's password or an API key, handed over once for a cookie that scripts cannot read.

import { fill, h } from "/console/dom.js";
import { logIn } from "/console/api.js";

const dark = matchMedia("(prefers-color-scheme: dark)").matches;
document.documentElement.dataset.theme = localStorage.getItem("chronik-theme") ?? (dark ? "dark" : "light");

const user = h("input", { name: "user", autocomplete: "username", autofocus: true });
const password = h("input", { name: "password", type: "password", autocomplete: "current-password" });
const key = h("input", { name: "key", type: "password", autocomplete: "off" });
const problem = h("div.error", { hidden: true, role: "alert" });
const go = h("button.primary", { type: "submit" }, "Log in");

const form = h("form.card", { onsubmit: submit },
  h("h1", null, h("img", { src: "/console/logo.svg", alt: "", width: 28, height: 28 }), " chronik"),
  h("label", null, "User", user), h("label", null, "Password", password),
  h("p", null, "or"), h("label", null, "API key", key), problem, h("div.actions", null, go));

async function submit(event) {
  event.preventDefault();
  go.disabled = true;
  try {
    await logIn(key.value ? { key: key.value.trim() } : { user: user.value, password: password.value });
    location.replace(`/${location.hash}`);
  } catch (error) {
    problem.hidden = false;
    problem.textContent = error.message;
    password.value = key.value = "";
  } finally {
    go.disabled = false;
  }
}

fill(document.getElementById("main"), form);
user.focus();
