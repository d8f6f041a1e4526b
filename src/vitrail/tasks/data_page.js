"use strict";
const large = document.getElementById("large");
const frames = [...document.querySelectorAll(".shot .frame")];
const MOST_NAMED = 60; // boxes; with more, names cover the picture even when it is large
let shown = 0;

// The enlarged image is a copy of the small one: its boxes are placed in shares of the frame.
function enlarge(index) {
  shown = (index + frames.length) % frames.length;
  const copy = document.createElement("div");
  const source = frames[shown];
  copy.className = source.className;
  copy.innerHTML = source.innerHTML;
  copy.style.aspectRatio = source.style.aspectRatio;
  const [width, height] = source.style.aspectRatio.split("/").map(Number);
  copy.style.setProperty("--ratio", width / height);
  copy.classList.toggle("crowd", copy.querySelectorAll("i").length > MOST_NAMED);
  large.querySelector(".stand").replaceChildren(copy);
  large.querySelector("p").innerHTML = source.parentElement.querySelector("figcaption").innerHTML;
  if (!large.open) large.showModal();
}

frames.forEach((frame, index) => { frame.onclick = () => enlarge(index); });
for (const button of large.querySelectorAll("[data-step]")) {
  button.onclick = () => enlarge(shown + Number(button.dataset.step));
}
large.onkeydown = (event) => {
  const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  if (step) {
    event.preventDefault();
    enlarge(shown + step);
  }
};
large.onclick = (event) => { if (event.target === large) large.close(); };
large.onclose = () => frames[shown].focus();

for (const chip of document.querySelectorAll(".chip")) {
  chip.onclick = () => {
    const isOn = chip.ariaPressed !== "true";
    chip.ariaPressed = String(isOn);
    for (const box of document.querySelectorAll(`#samples i[data-k="${chip.dataset.k}"]`)) box.hidden = !isOn;
  };
}
const names = document.getElementById("names");
if (names) names.onchange = () => document.body.classList.toggle("no-names", !names.checked);
