// Images that are dropped, pasted or chosen: what the model says, then where it looked, in the view that is loaded before.
const MOST_KEPT = 12;
const REST_MS = 250; // after the slider was moved
let last = null; // the image that was looked at last
const kept = []; // the files of the images in the view, for another confidence threshold
const options = new Set(settings.options.split(" ")); // that the model takes
const isDetector = options.has("threshold");
const isCLIP = options.has("labels");
const canExplain = settings.canExplain === "yes";

function readOptions() {
  if (isCLIP) return { labels: part("labels").value };
  return isDetector ? { threshold: part("threshold").value } : {};
}

function check(file) {
  if (file.size > +settings.maxBytes) throw new Error(`${file.name} has ${file.size.toLocaleString("en")} bytes. The server takes at most ${(+settings.maxBytes).toLocaleString("en")}. Choose a smaller image.`);
}

const typeOf = (file) => file.type || "application/octet-stream";

async function look(file, signal) {
  check(file);
  preview(file);
  const isQuick = !isDetector || !canExplain; // the view of a detector says all that its answer does
  if (isQuick) await sayQuickly(file, signal);
  if (!canExplain) return;
  try {
    await showExplanation(file, signal);
  } catch (error) {
    if (error.status !== 422) throw error;
    if (!isQuick) await sayQuickly(file, signal);
    part("note").textContent = error.message;
  }
}

async function showExplanation(file, signal, options = readOptions()) {
  const { explanation } = await ask(signal, "explain", file, typeOf(file), options);
  explanation.name = file.name || "pasted image";
  const place = kept.indexOf(file);
  if (place >= 0) data.explanations[place] = explanation;
  else {
    data.explanations.push(explanation);
    kept.push(file);
    if (kept.length > MOST_KEPT) for (const list of [data.explanations, kept]) list.shift();
  }
  fillChooser();
  part("quick").hidden = true;
  part("result").hidden = false;
  await lookAt(data.explanations.indexOf(explanation));
}

async function lookAt(place) {
  await load(place);
  if (options.has("class_name")) offerClasses();
}

// Each class can be asked what speaks for it, by the best of the methods that know classes.
function offerClasses() {
  const method = shown.views.find((each) => each.className)?.name;
  if (!method) return;
  for (const { cells: [cell] } of part("scores").rows) {
    const name = cell.textContent;
    const button = element("button", { type: "button", className: "class", textContent: name, title: `What speaks for ${name}` });
    button.onclick = () => only(async (signal) => {
      state.isPicked = false; // what is asked for is shown
      await showExplanation(kept[state.index], signal, { method, class_name: name });
      [...part("scores").querySelectorAll("button")].find((each) => each.textContent === name)?.focus();
    });
    cell.replaceChildren(button);
  }
}

function preview(file) {
  const picture = part("preview");
  if (picture.src) URL.revokeObjectURL(picture.src);
  picture.src = URL.createObjectURL(file);
  part("answer").textContent = "...";
  part("note").textContent = "";
  part("classes").replaceChildren();
  part("result").hidden = true;
  part("quick").hidden = false;
}

async function sayQuickly(file, signal) {
  const [result] = (await ask(signal, "predict", file, typeOf(file), readOptions())).results;
  if (isDetector) {
    part("answer").textContent = `${result.boxes.length} ${result.boxes.length === 1 ? "box" : "boxes"}`;
    part("classes").replaceChildren(...scoreRows(result.boxes.map((box) => [box.class, box.score])));
    return;
  }
  if (options.has("target")) {
    part("answer").textContent = result.caption;
    return;
  }
  part("answer").textContent = `${result.class}, ${(100 * result.probability).toFixed(1)}%`;
  part("classes").replaceChildren(...scoreRows(result.scores.map((each) => [each.class, each.probability])));
}

async function take(files) {
  const images = [...files];
  if (!images.length) return;
  last = images.at(-1);
  if (isCLIP && !part("labels").value.trim()) {
    preview(last);
    part("answer").textContent = "Write the names to choose among.";
    part("labels").focus();
    return;
  }
  await only(async (signal) => { for (const file of images.slice(0, MOST_KEPT)) await look(file, signal); });
  if (part("problem").hidden) return;
  part("quick").hidden = true; // what was there before is shown again
  part("result").hidden = !kept.length;
}

const drop = part("drop");
addEventListener("dragover", (event) => {
  event.preventDefault();
  drop.classList.add("over");
});
addEventListener("dragleave", (event) => { if (event.relatedTarget === null) drop.classList.remove("over"); });
addEventListener("drop", (event) => {
  event.preventDefault();
  drop.classList.remove("over");
  if (event.dataTransfer.files.length) take(event.dataTransfer.files);
  else complain("What was dropped is no file. Save the image first, or copy it and paste it here.");
});
addEventListener("paste", (event) => { if (event.clipboardData.files.length) take(event.clipboardData.files); });
part("file").onchange = (event) => {
  take(event.target.files);
  event.target.value = ""; // the same file may be chosen again
};
if (isCLIP) {
  let timer;
  part("labels").oninput = (event) => {
    clearTimeout(timer);
    if (last && event.target.value.trim()) timer = setTimeout(() => take([last]), REST_MS);
  };
}
if (isDetector) {
  let timer;
  part("threshold").oninput = (event) => {
    part("least").textContent = (+event.target.value).toFixed(2);
    clearTimeout(timer);
    timer = setTimeout(() => { if (kept.length) only((signal) => showExplanation(kept[state.index], signal)); }, REST_MS);
  };
}
