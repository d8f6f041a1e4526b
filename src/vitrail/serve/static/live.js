// What the pages of all kinds share: which model, the token, asking the server, and saying what went wrong.
const settings = document.body.dataset;
const TOKEN = "vitrail-token";
let asking = null;

function part(id) {
  return document.getElementById(id);
}

function complain(text) {
  const problem = part("problem");
  problem.hidden = !text;
  problem.textContent = text;
}

// Ask for a prediction or an explanation, until the signal of "only" ends it.
async function ask(signal, path, body, type, options = {}) {
  signal.throwIfAborted();
  const query = new URLSearchParams({ model: settings.model, ...options });
  const headers = { "content-type": type };
  const token = sessionStorage.getItem(TOKEN);
  if (token) headers.authorization = `Bearer ${token}`;
  let answer;
  try {
    answer = await fetch(`${path}?${query}`, { method: "POST", body, headers, signal });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error("The server cannot be reached, or it cut the connection. Is it still running?");
  }
  const tree = await answer.json().catch(() => null);
  if (answer.status === 401) part("token")?.focus();
  if (!answer.ok) throw Object.assign(new Error(tree?.error?.message ?? `The server answered ${answer.status}.`), { status: answer.status });
  return tree;
}

// Do one thing at a time: what an earlier one still waits for is given up.
async function only(work) {
  asking?.abort();
  const own = asking = new AbortController();
  complain("");
  document.body.classList.add("busy");
  try {
    await work(own.signal);
  } catch (error) {
    if (error.name !== "AbortError" && own === asking) complain(error.message);
  } finally {
    if (own === asking) document.body.classList.remove("busy");
  }
}

if (part("model")) part("model").onchange = (event) => {
  location.search = new URLSearchParams({ model: event.target.value });
};
if (part("token-form")) {
  part("token").value = sessionStorage.getItem(TOKEN) ?? "";
  part("token-form").onsubmit = (event) => {
    event.preventDefault();
    sessionStorage.setItem(TOKEN, part("token").value.trim());
    complain("");
  };
}
