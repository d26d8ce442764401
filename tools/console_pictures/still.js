// Holds a page still before its picture: what moves by nature is written over by the same words each time.
(() => {
  const month = "(Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]*";
  const rules = [
    [/\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b/g, "00000000-0000-0000-0000-000000000000"],
    [/\b(t-[a-z]+-)[0-9a-f]{6}\b/g, "$1000000"],
    [/sha256\/\/[\w+/=]{43,44}/g, "sha256//" + "0".repeat(44)],
    [/\bfl-[a-z0-9_]{8}(?![\w-])/g, "fl-00000000"],
    [/\bfl-[a-z]+-[\w-]*/g, "fl-train-0"],
    [/\b(whk_|flk_|ssh-|box:)[0-9A-Za-z]{6,}\b/g, "$1000000000000"],
    [/\b(?=[a-f]*\d)[0-9a-f]{6,64}\b/g, (one) => "0".repeat(one.length)],
    [/\b20\d\d-\d\d(-\d\d([ T]\d\d:\d\d(:\d\d)?(\.\d+)?Z?)?)?/g, "2026-01-05"],
    [/(?<![\w:.])\d\d?:\d\d(:\d\d)?(\.\d+)?(?![\w:])/g, "12:00"],
    [/\b(Mon|Tue|Wed|Thu|Fri|Sat|Sun),? \d+( [A-Z][a-z]+)?\b/g, "$1 5"],
    [new RegExp(`\\b\\d+ ${month}( 20\\d\\d)?\\b`, "g"), "5 Jan"],
    [/(?<!last )(?<![\w.:])<?\d+(\.\d+)? ?(ms|s|min|h|d|seconds?|minutes?|hours?|days?)(?![\w:])/gi, "5 s"],
    [/^now$/g, "5 s"],
    [/(?<![\w.])<?\d[\d.,]* ?(W|MHz|°C|B\/s|KiB\/s|MiB\/s|GiB\/s|EUR)(?!\w)/g, "5 $1"],
    [/\b127\.0\.0\.1:\d+/g, "127.0.0.1:8443"],
    [/\bpid \d+/g, "pid 100"],
    [/\d+\.\d\d of (?=\d)/g, "5 of "],
  ];
  const measured = ".gauges, .sums, .use, .chart, .plot, [data-label=Share], [data-label=Cost], [data-label=Epoch], [data-label^=GPU\\ h]";
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node = walk.nextNode(); node; node = walk.nextNode()) {
    const parent = node.parentElement;
    if (parent.closest("option, .help, .log")) continue;
    let text = node.nodeValue;
    for (const [from, to] of rules) text = text.replace(from, to);
    if (parent.closest(measured) && !parent.closest("th")) text = text.replace(/<?\d[\d.,]*/g, "5");
    if (parent.closest(".about")) text = text.replace(/^\d+ %$/, "5 %").replace(/^\d+ \/ /, "5 / ");
    if (parent.closest(".stats b")) text = text.replace(/\d+\.\d+/g, "5.00");
    if (text !== node.nodeValue) node.nodeValue = text;
  }
  // Colours of containers follow their namespace, whose name ends in an id.
  for (const one of document.querySelectorAll(".dot, .cell.taken, .weekgrid .own")) {
    for (let hue = 0; hue < 8; hue++) one.classList.remove(`h${hue}`);
    const text = (one.matches(".dot") ? one.parentElement : one).textContent;
    one.classList.add(`h${text.trim().length % 8}`);
  }
  const sheet = new CSSStyleSheet();
  sheet.replaceSync(`
    *, *::before, *::after { animation: none !important; transition: none !important; caret-color: transparent !important }
    .curve, .plot .chart text, .spark polyline, .plot .mark, .fall .track svg, .gauges .fill, .chart rect, td .bar .fill
      { visibility: hidden !important }`);
  document.adoptedStyleSheets = [...document.adoptedStyleSheets, sheet];
  // Events of one second come in any order: by their words they stand still.
  for (const list of document.querySelectorAll("ol.events"))
    list.replaceChildren(...[...list.children].sort((a, b) => (a.textContent < b.textContent ? -1 : 1)));
  if (document.activeElement) document.activeElement.blur();
  window.scrollTo(0, 0);
})();
