// The login page: a user's password or an API key, handed over once for a cookie that scripts cannot read.

import { html, render, useState } from "/console/vendor/preact.js";
import { logIn } from "/console/api.js";

const scheme = matchMedia("(prefers-color-scheme: dark)");
const applyTheme = () => { document.documentElement.dataset.theme = localStorage.getItem("chronik-theme") ?? (scheme.matches ? "dark" : "light"); };
scheme.addEventListener("change", applyTheme);
applyTheme();

function Login() {
  const [problem, setProblem] = useState(null);
  const [isBusy, setBusy] = useState(false);
  const submit = async (event) => {
    event.preventDefault();
    const { user, password, key } = event.target.elements;
    setBusy(true);
    try {
      await logIn(key.value ? { key: key.value.trim() } : { user: user.value, password: password.value });
      location.replace(`/${location.hash}`);
    } catch (error) {
      setProblem(error);
      password.value = key.value = "";
      setBusy(false);
    }
  };
  return html`<form class="card stack" onSubmit=${submit}>
    <h1><img src="/console/logo.svg" alt="" width="28" height="28" /> chronik</h1>
    <label>User<input name="user" autocomplete="username" autofocus /></label>
    <label>Password<input name="password" type="password" autocomplete="current-password" /></label>
    <p class="or">or</p>
    <label>API key<input name="key" type="password" autocomplete="off" /></label>
    ${problem && html`<div class="error" role="alert">${problem.message}</div>`}
    <div class="buttons"><button class="primary" type="submit" disabled=${isBusy}>Log in</button></div>
  </form>`;
}

render(html`<${Login} />`, document.getElementById("main"));
document.querySelector("input").focus();
