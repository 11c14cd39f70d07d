"use strict";
// Questions to the server, and how often they are asked.

class AskError extends Error {}

async function ask(path, query = {}) {
  const given = Object.entries(query).filter(([, value]) => value !== "" && value !== null && value !== undefined);
  const search = new URLSearchParams(given).toString();
  let response;
  try {
    response = await fetch(`api/${path}${search ? `?${search}` : ""}`);
  } catch {
    sayOffline(true);
    throw new AskError("The server does not answer: it has ended, or the connection to it has.");
  }
  sayOffline(false);
  if (response.status === 403) throw new AskError("The server was started anew: open the address that it printed.");
  const answered = await response.json();
  if (!response.ok) throw new AskError(answered.error ?? `The server refused (${response.status}).`);
  return answered;
}

function sayOffline(is) {
  const banner = document.getElementById("banner");
  banner.hidden = !is;
  if (is) banner.textContent = "The server does not answer. What is shown is of before; it is asked again.";
}

// What to do where a question failed: the page says why. Other errors are those of the scripts.
function sayFailed(root) {
  return (error) => {
    if (!(error instanceof AskError)) throw error;
    root.replaceChildren(element("p", { className: "message" }, error.message));
  };
}

// Calls something again and again while the page is looked at, and until it is stopped.
class Poll {
  constructor(seconds, call) {
    [this.seconds, this.call, this.on, this.timer] = [seconds, call, true, 0];
    this.wake = () => { if (!document.hidden) this.run(); };
    document.addEventListener("visibilitychange", this.wake);
    this.run();
  }

  async run() {
    clearTimeout(this.timer);
    if (!this.on || this.busy) return;
    this.busy = true;
    try {
      await this.call();
    } catch (error) {
      if (!(error instanceof AskError)) throw error;
    } finally {
      this.busy = false;
      clearTimeout(this.timer);
      if (this.on && !document.hidden) this.timer = setTimeout(() => this.run(), this.seconds * 1000);
    }
  }

  stop() {
    this.on = false;
    clearTimeout(this.timer);
    document.removeEventListener("visibilitychange", this.wake);
  }
}
