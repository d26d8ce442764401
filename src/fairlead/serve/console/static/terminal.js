// A terminal in a container: xterm.js over the API's exec session.
"use strict";

(function () {
  const form = document.getElementById("terminal-form");
  if (!form || !window.Terminal) return;
  const place = document.getElementById("terminal");
  const state = document.getElementById("terminal-state");

  // xterm writes <style> elements, which the page's policy forbids. Their text goes into sheets that scripts may make.
  const create = document.createElement.bind(document);
  document.createElement = (name, options) => {
    if (String(name).toLowerCase() !== "style") return create(name, options);
    const made = create("template"); // in its place: an empty <style> is refused as well
    const sheet = new CSSStyleSheet();
    document.adoptedStyleSheets = [...document.adoptedStyleSheets, sheet];
    Object.defineProperty(made, "textContent", { set: (text) => sheet.replaceSync(text), get: () => "" });
    made.remove = () => {
      document.adoptedStyleSheets = document.adoptedStyleSheets.filter((one) => one !== sheet);
      Element.prototype.remove.call(made);
    };
    return made;
  };

  let open = null;
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    if (open) open.close();
    const words = form.elements.command.value.trim().split(/\s+/).filter(Boolean);
    if (!words.length) return;
    const target = new URL(form.dataset.exec, window.location.href);
    target.protocol = window.location.protocol === "https:" ? "wss:" : "ws:";
    for (const word of words) target.searchParams.append("command", word);
    begin(target);
  });

  function begin(target) {
    place.hidden = false;
    place.replaceChildren();
    state.textContent = "Connecting.";
    const terminal = new window.Terminal({
      cursorBlink: true,
      fontFamily: getComputedStyle(document.documentElement).getPropertyValue("--mono"),
      fontSize: 13,
      screenReaderMode: true,
      theme: { background: "#10161d", foreground: "#e6ebf0", cursor: "#4cc3cf" },
    });
    const fit = new window.FitAddon.FitAddon();
    terminal.loadAddon(fit);
    terminal.open(place);
    const socket = new WebSocket(target, window.fairleadToken() ? ["fairlead", "fairlead-token." + window.fairleadToken()] : []);
    socket.binaryType = "arraybuffer";
    open = socket;
    const say = (value) => {
      if (socket.readyState === WebSocket.OPEN) socket.send(value);
    };
    const encoder = new TextEncoder();
    const resize = () => {
      fit.fit();
      say(JSON.stringify({ resize: { rows: terminal.rows, columns: terminal.cols } }));
    };
    const watcher = new ResizeObserver(resize);
    terminal.onData((text) => say(encoder.encode(text)));
    socket.onopen = () => {
      state.textContent = "Connected. Tab leaves the terminal after Escape.";
      resize();
      watcher.observe(place);
      terminal.focus();
    };
    // Tab belongs to the shell; Escape and then Tab leaves, so that a keyboard is not caught here.
    let leaves = false;
    terminal.attachCustomKeyEventHandler((event) => {
      if (event.type === "keydown" && event.key === "Tab" && leaves) return false;
      if (event.type === "keydown") leaves = event.key === "Escape";
      return true;
    });
    socket.onmessage = (message) => {
      if (typeof message.data !== "string") {
        terminal.write(new Uint8Array(message.data));
        return;
      }
      const last = JSON.parse(message.data);
      if (last.problem) state.textContent = last.problem.detail + (last.problem.hint ? " (" + last.problem.hint + ")" : "");
      else state.textContent = "It ended with exit code " + last.exit_code + ".";
    };
    socket.onclose = () => {
      watcher.disconnect();
      terminal.options.disableStdin = true;
      if (state.textContent.startsWith("Connect")) state.textContent = "The session is over.";
      if (open === socket) open = null;
    };
  }
})();
