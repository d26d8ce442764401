// What pages do beyond showing what they came with: they refresh themselves, and follow a container's output.
"use strict";

// The token that changes show, which no cookie holds: it comes once, with the login, and stays with this origin, port and
// all. Another port of this host gets the cookie, and not this.
window.fairleadToken = (function () {
  const found = /^#token=([0-9a-f]{64})$/.exec(window.location.hash);
  if (found) {
    window.localStorage.setItem("fairlead-token", found[1]);
    window.history.replaceState(null, "", window.location.pathname + window.location.search);
  }
  return () => window.localStorage.getItem("fairlead-token") || "";
})();
document.addEventListener(
  "submit",
  (event) => {
    const field = event.target.elements.namedItem("csrf");
    if (field) field.value = window.fairleadToken();
  },
  true,
);

(function () {
  // Refresh what is marked live while somebody looks; a form that is being filled in is left alone.
  const last = new Map();
  setInterval(() => {
    if (document.hidden || !window.htmx) return;
    for (const part of document.querySelectorAll("[data-live]")) {
      const focus = document.activeElement;
      if (part.contains(focus) && focus.matches("input, select, textarea")) continue;
      if (String(document.getSelection()) && part.contains(document.getSelection().anchorNode)) continue;
      const now = Date.now();
      if (now - (last.get(part.id) || 0) < Number(part.dataset.live) * 1000) continue;
      last.set(part.id, now);
      window.htmx.trigger(part, "refresh");
    }
  }, 500);

  // A live part is refreshed at once when something happens. A hidden page holds no connection.
  const told = document.querySelector("[data-follows]");
  const say = (text) => told && (document.getElementById(told.dataset.follows).textContent = text);
  let stream = null;
  let due = 0;
  const soon = () => {
    if (due) return;
    due = setTimeout(() => {
      due = 0;
      last.clear();
    }, 300);
  };
  const open = () => {
    if (stream || document.hidden || !window.EventSource || !document.querySelector("[data-live]")) return;
    let isCurrent = false;
    stream = new EventSource("/v1/events?tail=0");
    stream.addEventListener("current", () => {
      isCurrent = true;
      say("Following.");
    });
    stream.addEventListener("reset", () => (isCurrent = false));
    stream.addEventListener("message", () => {
      if (isCurrent) soon();
    });
    stream.addEventListener("error", () => say("The connection was lost; trying again."));
  };
  const shut = () => {
    if (stream) stream.close();
    stream = null;
  };
  document.addEventListener("visibilitychange", () => (document.hidden ? shut() : open()));
  window.addEventListener("pagehide", shut);
  open();

  const menu = document.querySelector("button.menu");
  if (menu) {
    const pages = document.getElementById("pages");
    menu.addEventListener("click", () => menu.setAttribute("aria-expanded", String(pages.classList.toggle("open"))));
  }

  // A slash leads to the search box, unless it is typed into something; arrows go through what was found.
  const jump = document.getElementById("jump");
  const hits = [...document.querySelectorAll(".hits a")];
  document.addEventListener("keydown", (event) => {
    const focus = document.activeElement;
    if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey || !jump) return;
    if (event.key === "/" && !focus.matches("input, select, textarea, [contenteditable]")) {
      event.preventDefault();
      jump.focus();
      jump.select();
      return;
    }
    const at = hits.indexOf(focus);
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!step || !hits.length || (at < 0 && focus !== jump)) return;
    event.preventDefault();
    (hits[at + step] || (at + step < 0 ? jump : focus)).focus();
  });

  document.addEventListener("submit", (event) => {
    const question = event.target.dataset.confirm;
    if (question && !window.confirm(question)) event.preventDefault();
  });

  const log = document.getElementById("log");
  if (!log) return;
  const state = document.getElementById("log-state");
  const wrap = document.getElementById("log-wrap");
  wrap.addEventListener("change", () => log.classList.toggle("nowrap", !wrap.checked));
  const most = 400000;

  // Take away what only a terminal understands, as the server does for what the page came with. Each step looks at each
  // letter once: a pattern that may begin anywhere and ends at a return would take the square of a long line's length.
  const after = (line, isLast) => {
    let end = line.length;
    if (!isLast) while (end && line[end - 1] === "\r") end--;
    return line.slice(line.lastIndexOf("\r", end - 1) + 1, end);
  };
  const plain = (text) => {
    const lines = text
      .replace(/\x1b\][^\x07\x1b]*(\x07|\x1b\\)|\x1b[@-Z\\-_]|\x1b\[[0-?]*[ -/]*[@-~]/g, "")
      .split("\n");
    const kept = lines.map((line, at) => after(line, at === lines.length - 1));
    return kept.join("\n").replace(/[\x00-\x08\x0b-\x1f\x7f]/g, "");
  };

  // A page that was left may be kept by the browser, and would hold a connection: there are six to a host.
  let left = new AbortController();
  async function follow(address) {
    const answer = await fetch(address, { credentials: "same-origin", signal: left.signal });
    if (!answer.ok) return;
    const reader = answer.body.getReader();
    const decoder = new TextDecoder();
    let kept = null;
    state.textContent = "Following.";
    for (;;) {
      const { done, value } = await reader.read();
      if (done) break;
      const isAtEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 40;
      kept = (kept === null ? "" : kept) + decoder.decode(value, { stream: true });
      if (kept.length > most) kept = kept.slice(-most);
      log.textContent = plain(kept);
      if (isAtEnd) log.scrollTop = log.scrollHeight;
    }
    state.textContent = "It has ended.";
  }
  log.scrollTop = log.scrollHeight;
  if (log.dataset.follow) {
    const begin = () => {
      left = new AbortController();
      follow(log.dataset.follow).catch(() => {
        state.textContent = "The connection was lost: load the page again to go on.";
      });
    };
    begin();
    window.addEventListener("pagehide", () => left.abort());
    window.addEventListener("pageshow", (event) => event.persisted && begin());
  }
})();

(function () {
  // Tabs: one part of a page at a time, each with an address of its own. Without scripts all parts are there.
  const bar = document.querySelector("[data-tabs]");
  if (!bar) return;
  const links = [...bar.querySelectorAll("a")];
  const parts = links.map((link) => document.querySelector(link.hash));
  bar.setAttribute("role", "tablist");
  links.forEach((link, at) => {
    link.setAttribute("role", "tab");
    link.setAttribute("aria-controls", parts[at].id);
    parts[at].setAttribute("role", "tabpanel");
  });
  const show = () => {
    const target = /^#[\w-]+$/.test(window.location.hash) ? document.querySelector(window.location.hash) : null;
    const found = parts.findIndex((part) => target && part.contains(target));
    const shown = found < 0 ? 0 : found;
    links.forEach((link, at) => {
      link.setAttribute("aria-selected", String(at === shown));
      link.tabIndex = at === shown ? 0 : -1;
      parts[at].hidden = at !== shown;
    });
    bar.scrollLeft = links[shown].offsetLeft - bar.offsetLeft - (bar.clientWidth - links[shown].offsetWidth) / 2;
    const log = document.getElementById("log");
    if (log && !parts[shown].contains(target)) log.scrollTop = log.scrollHeight;
    window.dispatchEvent(new Event("resize")); // a terminal that was hidden fits itself
  };
  const go = (link) => {
    if (link.hash !== window.location.hash) window.history.pushState(null, "", link.hash);
    show();
  };
  bar.addEventListener("click", (event) => {
    const link = event.target.closest("a");
    if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    go(link);
  });
  bar.addEventListener("keydown", (event) => {
    const at = links.indexOf(document.activeElement);
    const to = { ArrowRight: at + 1, ArrowLeft: at - 1 + links.length, Home: 0, End: links.length - 1 }[event.key];
    if (at < 0 || to === undefined) return;
    event.preventDefault();
    const link = links[to % links.length];
    link.focus();
    go(link);
  });
  window.addEventListener("popstate", show);
  window.addEventListener("hashchange", show);
  show();
})();

(function () {
  // A week is shown on the clock of whoever looks: the address has the zone, so that it can be sent to somebody else.
  const week = document.getElementById("week");
  if (!week) return;
  const asked = new URLSearchParams(window.location.search);
  const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
  if (zone && !asked.has("zone") && zone !== week.dataset.zone) {
    asked.set("zone", zone);
    window.location.replace(`${window.location.pathname}?${asked}${window.location.hash}`);
    return;
  }
  // Arrows go from hour to hour; one of them is in the order of Tab, not all 168.
  const rows = [...week.querySelectorAll("tbody tr")].map((row) => [...row.querySelectorAll("td")]);
  const links = [...week.querySelectorAll("tbody td > a")];
  const give = (link) => links.forEach((one) => (one.tabIndex = one === link ? 0 : -1));
  if (links.length) give(links[0]);
  week.addEventListener("focusin", (event) => links.includes(event.target) && give(event.target));
  week.addEventListener("keydown", (event) => {
    const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
    if (!step || !links.includes(document.activeElement)) return;
    event.preventDefault();
    let row = rows.findIndex((cells) => cells.some((cell) => cell.contains(document.activeElement)));
    let column = rows[row].findIndex((cell) => cell.contains(document.activeElement));
    for (;;) {
      row += step[0];
      column += step[1];
      const cell = rows[row] && rows[row][column];
      if (!cell) return;
      const link = cell.querySelector("a");
      if (link) return link.focus();
    }
  });
})();
