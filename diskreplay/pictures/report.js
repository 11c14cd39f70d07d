"use strict";
// Players of the episodes: frames are squares of PNG strips, drawn on a canvas.
const said = new Intl.NumberFormat("en", { maximumFractionDigits: 3 });
const signed = new Intl.NumberFormat("en", { maximumFractionDigits: 3, signDisplay: "exceptZero" });

function player(root, reel) {
  const find = (name) => root.querySelector(name);
  const canvas = find("canvas"), button = find("button"), slider = find("input");
  const speed = find("select"), now = root.querySelectorAll(".now dd");
  const pen = canvas.getContext("2d");
  const strips = reel.strips.map((data) => {
    const image = new Image();
    image.onload = () => show(at);
    image.src = "data:image/png;base64," + data;
    return image;
  });
  let at = 0, timer = 0;

  function show(frame) {
    at = frame;
    slider.value = at;
    const strip = strips[Math.floor(at / reel.per)];
    if (strip.complete) {
      pen.drawImage(strip, 0, (at % reel.per) * reel.height, reel.width, reel.height,
        0, 0, reel.width, reel.height);
    }
    const acts = at < reel.actions.length;
    const reward = acts ? reel.rewards[at] : 0;
    now[0].textContent = acts ? said.format(reel.first + at * reel.stride) : "end";
    now[1].textContent = acts ? reel.actions[at] : "–";
    now[2].textContent = acts ? signed.format(reward) : "–";
    now[2].className = reward > 0 ? "gain" : reward < 0 ? "loss" : "";
    now[3].textContent = said.format(acts ? reel.returns[at] + reward : reel.total);
    slider.setAttribute("aria-valuetext", "step " + now[0].textContent);
  }

  function play(on) {
    clearInterval(timer);
    timer = on ? setInterval(() => show((at + 1) % reel.frames), 1000 / speed.value) : 0;
    button.textContent = on ? "❚❚" : "▶";
    button.setAttribute("aria-label", on ? "Pause" : "Play");
  }

  button.onclick = canvas.onclick = () => play(!timer);
  slider.oninput = () => { play(false); show(Number(slider.value)); };
  speed.onchange = () => { if (timer) play(true); };

  const marks = find(".marks");
  marks.setAttribute("viewBox", `0 0 ${Math.max(1, reel.frames - 1)} 1`);
  const wide = Math.max(reel.frames / 240, 0.2);
  reel.rewards.forEach((reward, frame) => {
    if (!reward) return;
    const mark = document.createElementNS("http://www.w3.org/2000/svg", "rect");
    mark.setAttribute("x", frame - wide / 2);
    mark.setAttribute("width", wide);
    mark.setAttribute("height", 1);
    mark.setAttribute("class", reward > 0 ? "gain" : "loss");
    marks.append(mark);
  });
  show(0);

  // Played while it is in sight, until it is paused by hand.
  if (matchMedia("(prefers-reduced-motion: reduce)").matches) return;
  let wanted = true;
  button.addEventListener("click", () => { wanted = Boolean(timer); });
  canvas.addEventListener("click", () => { wanted = Boolean(timer); });
  slider.addEventListener("input", () => { wanted = false; });
  new IntersectionObserver(([entry]) => play(wanted && entry.isIntersecting)).observe(canvas);
}

const reels = JSON.parse(document.getElementById("reels").textContent);
document.querySelectorAll(".reel").forEach((root, i) => player(root, reels[i]));
