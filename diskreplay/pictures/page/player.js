"use strict";
// Plays an episode: its frames, and its figures on one time line.
//
// What it plays is an object with
//   count             transitions; frames: the same, or one more, the frame it ended with
//   firstStep, stride the step of the first transition, and how many steps lie between two frames
//   cameras           [{ name, width, height, per }]: frames of `per` lie below each other in a strip
//   strip(camera, k)  the address of a strip
//   lines             [{ channel: { name, group, names, size }, low, high }]
//   steps(first, n)   a promise of { ids, actions, rewards, values } of some transitions
//   stack             { size, padding }: what the agent saw

const PLAYERS = new Set();
const STEPS_AT_ONCE = 256, STRIPS_KEPT = 24, COMPONENTS = 12; // of a vector that are drawn
const SPEEDS = [1, 2, 5, 10, 15, 30, 60, 120, 240];

class StepStore { // figures of steps, fetched in runs
  constructor(play) {
    [this.play, this.runs] = [play, new Map()];
  }

  get(at) {
    const run = Math.floor(at / STEPS_AT_ONCE), found = this.runs.get(run);
    if (found === undefined) this.fetch(run);
    if (!found || found.then) return null;
    const place = at % STEPS_AT_ONCE;
    return place < found.ids.length ? { found, place } : null;
  }

  async fetch(run) {
    const asked = Promise.resolve(this.play.steps(run * STEPS_AT_ONCE, STEPS_AT_ONCE));
    this.runs.set(run, asked);
    try {
      this.runs.set(run, await asked);
    } catch {
      this.runs.delete(run);
      return;
    }
    while (this.runs.size > 64) this.runs.delete(this.runs.keys().next().value);
    this.onload?.();
  }
}

class Camera { // a canvas, and the strips it is drawn from
  constructor(play, about, onload) {
    Object.assign(this, { play, about, onload, strips: new Map(), stacked: false });
    this.canvas = element("canvas", { width: about.width, height: about.height });
    this.canvas.setAttribute("role", "img");
    this.canvas.setAttribute("aria-label", `Frames of ${about.name}`);
    this.element = element("figure", { className: "camera" }, this.canvas, element("figcaption", {}, about.name));
  }

  strip(number) {
    let image = this.strips.get(number);
    if (!image) {
      image = new Image();
      image.onload = () => this.onload();
      image.src = this.play.strip(this.about, number);
      this.strips.set(number, image);
      while (this.strips.size > STRIPS_KEPT) this.strips.delete(this.strips.keys().next().value);
    }
    return image;
  }

  ready(at) {
    const image = this.strip(Math.floor(at / this.about.per));
    return image.complete && image.naturalWidth > 0;
  }

  // The frames that are shown for a step: itself, or the stack that the agent saw.
  shown(at) {
    const { size, padding } = this.play.stack ?? { size: 1 };
    if (!this.stacked || size === 1) return [at];
    return Array.from({ length: size }, (_, back) => {
      const frame = at - size + 1 + back;
      return frame >= 0 ? frame : padding === "reset" ? 0 : null;
    });
  }

  draw(at) {
    const frames = this.shown(at), { width, height, per } = this.about;
    if (this.canvas.width !== width * frames.length) this.canvas.width = width * frames.length;
    const pen = this.canvas.getContext("2d");
    let whole = true;
    frames.forEach((frame, place) => {
      if (frame === null) return void pen.clearRect(place * width, 0, width, height);
      if (!this.ready(frame)) return void (whole = false);
      const image = this.strip(Math.floor(frame / per));
      pen.drawImage(image, 0, (frame % per) * height, width, height, place * width, 0, width, height);
    });
    const next = Math.floor(at / per) + 1;
    if (next * per < this.play.frames && (at % per) / per > 0.3) this.strip(next);
    return whole;
  }
}

class Trace { // one channel over the episode, with a mark where the player is
  constructor(line, count, seek) {
    [this.line, this.count] = [line, count];
    this.svg = shape("svg", { class: "trace", preserveAspectRatio: "none", viewBox: "0 0 1000 100" });
    this.cursor = shape("line", { class: "cursor", y1: 0, y2: 100 });
    this.value = element("output");
    const { name, names, size } = line.channel;
    this.called = names.map((each) => (each === name || each.startsWith(`${name}[`) ? "" : each)); // what the metadata call it
    const drawn = Math.min(names.length, COMPONENTS);
    this.element = element("div", { className: "channel" },
      element("span", { className: "name" }, name, size > drawn ? element("small", {}, ` ${drawn} of ${size}`) : null), this.svg, this.value);
    const [low, high] = extent(...line.low, ...line.high), span = high - low || 1;
    const up = (value) => (96 - ((value - low) / span) * 92).toFixed(1);
    const step = (at, of) => ((of === 1 ? 0.5 : at / (of - 1)) * 1000).toFixed(1);
    line.low.slice(0, COMPONENTS).forEach((lows, which) => {
      const highs = line.high[which], top = [], bottom = [];
      lows.forEach((value, at) => {
        if (value === null) return;
        top.push(`${step(at, lows.length)},${up(highs[at])}`);
        bottom.unshift(`${step(at, lows.length)},${up(value)}`);
      });
      this.svg.append(shape("polygon", { class: `c${which % 6}`, points: [...top, ...bottom].join(" ") }));
    });
    this.svg.append(this.cursor);
    const move = (event) => {
      const box = this.svg.getBoundingClientRect();
      seek(Math.round(((event.clientX - box.left) / box.width) * (count - 1)));
    };
    this.svg.addEventListener("pointerdown", (event) => { this.svg.setPointerCapture(event.pointerId); move(event); });
    this.svg.addEventListener("pointermove", (event) => { if (event.buttons) move(event); });
  }

  show(at, values) {
    const x = this.count > 1 ? (Math.min(at, this.count - 1) / (this.count - 1)) * 1000 : 500;
    this.cursor.setAttribute("x1", x);
    this.cursor.setAttribute("x2", x);
    const texts = (values ?? []).slice(0, COMPONENTS).map((value, which) =>
      element("span", { className: values.length > 1 ? `k${which % 6}` : "", title: this.line.channel.names[which] },
        this.called[which] ? element("span", { className: "called" }, `${this.called[which]} `) : null, numberText(value)));
    this.value.replaceChildren(...texts);
  }
}

class Player {
  constructor(play, { onstep } = {}) {
    Object.assign(this, { play, onstep, at: 0, fps: 15, timer: 0, playing: false });
    this.steps = new StepStore(play);
    this.steps.onload = () => this.draw();
    this.cameras = play.cameras.map((about) => new Camera(play, about, () => this.draw()));
    this.build();
    PLAYERS.add(this);
    this.seek(play.poster ?? 0);
  }

  build() {
    const button = (label, text, onclick) => element("button", { type: "button", title: label, ariaLabel: label, onclick }, text);
    this.button = button("Play", "▶", () => this.toggle());
    this.slider = element("input", { type: "range", min: 0, max: Math.max(0, this.play.frames - 1), value: 0, ariaLabel: "Step",
      oninput: () => { this.pause(); this.seek(Number(this.slider.value)); } });
    this.speed = element("select", { ariaLabel: "Frames a second", onchange: () => { this.fps = Number(this.speed.value); } },
      ...SPEEDS.map((fps) => element("option", { value: fps, selected: fps === this.fps }, `${fps} fps`)));
    const larger = button("Larger (f)", "⤢", () => this.enlarge());
    const stacks = (this.play.stack?.size ?? 1) > 1 && this.cameras.length
      ? element("label", { className: "tick" }, (this.stacking = element("input", { type: "checkbox", onchange: () => this.stack() })), "stacks")
      : null;
    this.traces = this.play.lines.map((line) => new Trace(line, this.play.count, (at) => { this.pause(); this.seek(at); }));
    const said = (name) => { const dd = element("dd"); this.now.append(element("dt", {}, name), dd); return dd; };
    this.now = element("dl", { className: "now" });
    [this.sayStep, this.sayAction, this.sayReward] = [said("step"), said("action"), said("reward")];
    this.marks = shape("svg", { class: "marks", preserveAspectRatio: "none", "aria-hidden": "true" });
    this.drawMarks();
    this.element = element("div", { className: "player", tabIndex: 0 },
      this.cameras.length ? element("div", { className: "cameras" }, ...this.cameras.map((camera) => camera.element)) : null,
      this.marks, this.slider,
      element("div", { className: "controls" }, button("Step back (←)", "‹", () => this.step(-1)), this.button,
        button("Step on (→)", "›", () => this.step(1)), this.speed, stacks, element("span", { className: "wide" }), larger),
      this.now, element("div", { className: "channels" }, ...this.traces.map((trace) => trace.element)));
    this.cameras.forEach((camera) => camera.canvas.addEventListener("click", () => this.toggle()));
    this.element.addEventListener("keydown", (event) => this.key(event));
  }

  drawMarks() {
    const rewards = this.play.lines.find((line) => line.channel.name === "reward");
    if (!rewards) return;
    const [lows, highs] = [rewards.low[0], rewards.high[0]], count = lows.length;
    this.marks.setAttribute("viewBox", `0 0 ${Math.max(1, count)} 1`);
    lows.forEach((low, at) => {
      const reward = Math.abs(low) > Math.abs(highs[at]) ? low : highs[at];
      if (!reward) return;
      const wide = Math.max(0.6, count / 300);
      this.marks.append(shape("rect", { x: at + 0.5 - wide / 2, width: wide, height: 1, class: reward > 0 ? "gain" : "loss" }));
    });
  }

  stack() {
    this.cameras.forEach((camera) => { camera.stacked = this.stacking.checked; });
    this.draw();
  }

  key(event) {
    if (event.target.tagName === "SELECT" || event.ctrlKey || event.metaKey || event.altKey) return;
    const far = event.shiftKey ? 10 : 1;
    const deeds = {
      " ": () => this.toggle(), k: () => this.toggle(), ArrowLeft: () => this.step(-far), ArrowRight: () => this.step(far),
      Home: () => this.seek(0), End: () => this.seek(this.play.frames - 1), f: () => this.enlarge(),
      s: () => { if (this.stacking) { this.stacking.checked = !this.stacking.checked; this.stack(); } },
      "+": () => this.faster(1), "-": () => this.faster(-1),
      Escape: () => { if (this.element.classList.contains("large")) this.enlarge(); },
    };
    const deed = deeds[event.key];
    if (!deed || (event.key === " " && (event.target.tagName === "BUTTON" || event.target.type === "checkbox"))) return;
    event.preventDefault();
    deed();
  }

  faster(by) {
    const at = Math.min(Math.max(SPEEDS.indexOf(this.fps) + by, 0), SPEEDS.length - 1);
    this.fps = SPEEDS[at];
    this.speed.value = this.fps;
  }

  enlarge() {
    this.element.classList.toggle("large");
    document.body.classList.toggle("still", this.element.classList.contains("large"));
    this.element.focus();
  }

  step(by) {
    this.pause();
    this.seek(this.at + by);
  }

  seek(at) {
    this.at = Math.min(Math.max(at, 0), Math.max(0, this.play.frames - 1));
    this.slider.value = this.at;
    this.draw();
  }

  toggle() {
    if (this.playing) this.pause();
    else this.start();
  }

  start() {
    for (const other of PLAYERS) if (other !== this) other.pause(); // one at a time
    if (this.at >= this.play.frames - 1) this.seek(0);
    [this.playing, this.due] = [true, performance.now() + 1000 / this.fps];
    this.sayPlaying();
    const beat = (now) => {
      if (!this.playing) return;
      if (now >= this.due) {
        const many = Math.floor(((now - this.due) * this.fps) / 1000) + 1;
        const next = Math.min(this.at + many, this.play.frames - 1);
        if (this.cameras.every((camera) => camera.shown(next).every((frame) => frame === null || camera.ready(frame)))) {
          this.seek(next);
          this.due += (many * 1000) / this.fps;
          if (next === this.play.frames - 1) return void this.pause();
        } else {
          this.due = now; // its frames are on their way
        }
      }
      requestAnimationFrame(beat);
    };
    requestAnimationFrame(beat);
  }

  pause() {
    this.playing = false;
    this.sayPlaying();
  }

  sayPlaying() {
    this.button.textContent = this.playing ? "❚❚" : "▶";
    this.button.ariaLabel = this.button.title = this.playing ? "Pause" : "Play";
    this.element.dataset.playing = this.playing;
  }

  draw() {
    const { play, at } = this;
    this.cameras.forEach((camera) => camera.draw(at));
    const isFinal = at >= play.count, known = isFinal ? null : this.steps.get(at);
    this.sayStep.textContent = isFinal ? "the end" : numberText(play.firstStep + at * play.stride);
    this.slider.setAttribute("aria-valuetext", `step ${this.sayStep.textContent}`);
    this.onstep?.(at, known ? known.found.ids[known.place] : null);
    const reward = known ? known.found.rewards[known.place] : null;
    this.sayAction.textContent = known ? known.found.actions[known.place] : "–";
    this.sayReward.textContent = known ? numberText(reward) : "–";
    this.sayReward.className = reward > 0 ? "gain" : reward < 0 ? "loss" : "";
    for (const trace of this.traces) {
      const { name } = trace.line.channel;
      const values = known ? (name === "reward" ? [reward] : known.found.values[name]?.[known.place]) : null;
      trace.show(at, values);
    }
  }

  stop() {
    this.pause();
    PLAYERS.delete(this);
    document.body.classList.remove("still");
  }
}
