// Translation as one types: after a short rest the sentence is asked for, and its alignment is shown.
const REST_MS = 300;
const canExplain = settings.canExplain === "yes";
const typed = part("typed");
let timer;

async function translate(text, signal) {
  const body = JSON.stringify({ text });
  if (!canExplain) {
    part("answer").textContent = (await ask(signal, "predict", body, "application/json")).results[0].text;
    return;
  }
  const { explanation } = await ask(signal, "explain", body, "application/json");
  data.explanations = [explanation];
  part("answer").textContent = explanation.title;
  part("result").hidden = false;
  await load(0);
}

function clear() {
  asking?.abort();
  complain("");
  part("answer").textContent = "";
  part("result").hidden = true;
}

typed.oninput = () => {
  clearTimeout(timer);
  const text = typed.value.replace(/\s+/g, " ").trim();
  if (text) timer = setTimeout(() => only((signal) => translate(text, signal)), REST_MS);
  else clear();
};
if (typed.value.trim()) typed.oninput();
