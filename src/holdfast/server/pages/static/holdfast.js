// The one script of our own: live updates, times, keys, theme, copying. Reading works without it.
"use strict";
(() => {
  const root = document.documentElement, say = root.dataset, base = say.base || "";
  const $ = (id) => document.getElementById(id);
  const all = (query, within = document) => [...within.querySelectorAll(query)];
  const fill = (text, values) => text.replace(/\{(\w+)\}/g, (_, name) => values[name]);
  const cookie = (name) => (document.cookie.split("; ").find((each) => each.startsWith(name + "=")) || "").slice(name.length + 1);
  const remember = (name, value) => {
    document.cookie = `${name}=${value}; path=${base || "/"}; max-age=31536000; samesite=lax`;
  };

  // ------------------------------------------------------------------ times: the store's clock, in the viewer's zone
  let ahead = Number(say.now) * 1000 - Date.now(); // of the store's clock
  const now = () => Date.now() + ahead;
  let utc = cookie("holdfast_zone") === "utc";
  const pad = (number) => String(number).padStart(2, "0");
  const clockOf = (date, inUtc) => inUtc ? date.toISOString().slice(11, 19)
    : [date.getHours(), date.getMinutes(), date.getSeconds()].map(pad).join(":");
  const dayOf = (date, inUtc) => inUtc ? date.toISOString().slice(0, 10)
    : `${date.getFullYear()}-${pad(date.getMonth() + 1)}-${pad(date.getDate())}`;
  const full = (date, inUtc) => `${dayOf(date, inUtc)} ${clockOf(date, inUtc)}${inUtc ? "Z" : ""}`;
  const brief = (seconds) => {
    for (const [size, unit] of [[86400, "d"], [3600, "h"], [60, "min"]])
      if (seconds >= 2 * size) return `${Math.floor(seconds / size)} ${unit}`;
    return `${Math.max(0, Math.floor(seconds))} s`;
  };
  const write = (element, text) => { if (element.textContent !== text) element.textContent = text; };
  const showTimes = () => {
    for (const each of all("time[datetime]")) {
      const date = new Date(each.dateTime), left = (now() - date) / 1000;
      each.title = `${full(date, false)} · ${full(date, true)}`;
      if ("when" in each.dataset) write(each, fill(left < 0 ? say.tAhead : say.tAgo, { time: brief(Math.abs(left)) }));
      else if ("at" in each.dataset) write(each, full(date, utc));
    }
  };
  let leasesAt = performance.now();
  const runDown = () => {
    const passed = (performance.now() - leasesAt) / 1000;
    if (stateNow !== "live") return;
    for (const each of all("meter[data-left]")) {
      const left = Number(each.dataset.left) - passed;
      each.value = Math.max(0, left);
      const text = each.parentElement.querySelector("[data-left-text]");
      if (text) write(text, left > 0 ? brief(left) : fill(say.tOverdue, { time: brief(-left) }));
    }
  };

  // ------------------------------------------------------------------ live: a pulse, and then the page's own live part
  const button = $("live-button"), clock = $("clock"), region = $("live");
  let stream = null, version = null, fails = 0, again = 0, beatAt = 0, stateNow = "live", paused = false, tag = null;
  const show = (state) => {
    stateNow = state;
    if (!button) return;
    button.dataset.state = state;
    button.setAttribute("aria-pressed", String(state === "paused"));
    write($("live-word"), say["t" + state[0].toUpperCase() + state.slice(1)]);
    region.classList.toggle("stale", state === "lost" || state === "down");
  };
  const refresh = () => { if (region && region.hasAttribute("hx-get") && !busy()) window.htmx?.trigger(document.body, "pulse"); };
  // Rows never move under the pointer, nor while some are chosen.
  const busy = () => document.querySelector("#live [data-choose]:checked, #live [data-steady]:hover") !== null;
  const close = () => { stream?.close(); stream = null; clearTimeout(again); };
  const open = () => {
    close();
    if (!button || paused || document.hidden) return;
    stream = new EventSource(`${base}/pulse`);
    stream.addEventListener("pulse", (event) => {
      const beat = JSON.parse(event.data);
      fails = 0; beatAt = performance.now();
      if (beat.down) return show("down");
      if (stateNow !== "live") { show("live"); version = null; }
      ahead = new Date(beat.at) - Date.now();
      write(clock, clockOf(new Date(beat.at), utc));
      if (version !== beat.version) { if (version !== null || fails) refresh(); version = beat.version; }
    });
    stream.onerror = () => {
      close(); fails += 1; show("lost");
      if (fails > 1) refresh(); // every few seconds, until the stream is back
      again = setTimeout(open, Math.min(1000 * fails, 5000));
    };
  };
  const pause = () => {
    paused = !paused;
    if (paused) { close(); show("paused"); } else { show("live"); version = null; refresh(); open(); }
  };
  document.addEventListener("visibilitychange", () => { if (document.hidden) close(); else if (!paused) { refresh(); open(); } });
  addEventListener("pagehide", close);
  addEventListener("pageshow", (event) => { if (event.persisted) open(); });
  document.addEventListener("htmx:config:request", (event) => {
    if (event.target === region && tag) event.detail.ctx.request.headers["If-None-Match"] = tag;
  });
  document.addEventListener("htmx:before:swap", (event) => {
    const response = event.detail.ctx?.response;
    if (event.target !== region || !response) return;
    if (response.status === 401) return location.reload();
    if (response.status >= 400) { event.preventDefault(); show("down"); return; }
    tag = response.headers?.get?.("etag") || null;
  });
  document.addEventListener("htmx:after:swap", () => { leasesAt = performance.now(); showTimes(); drawCharts(); keepRow(); });
  document.addEventListener("toggle", (event) => {
    if (event.target.matches?.("#live details")) event.target.toggleAttribute("hx-morph-skip", event.target.open && !event.target.matches(".tree details"));
  }, true);
  setInterval(() => {
    if (stream && beatAt && performance.now() - beatAt > 10000) { beatAt = performance.now(); stream.onerror(); }
    showTimes();
  }, 5000);
  setInterval(runDown, 1000);

  // ------------------------------------------------------------------ charts: data-chart holds {x, series: [{label, values, color}]}
  const drawCharts = () => {
    for (const each of all("[data-chart]")) {
      if (!window.uPlot || (each.drawn === each.dataset.chart && each.querySelector(".uplot"))) continue; // a swap empties it
      each.drawn = each.dataset.chart;
      const { x, unit, series } = JSON.parse(each.dataset.chart), ink = getComputedStyle(root);
      const colour = (name) => ink.getPropertyValue(`--${name}`).trim(), grid = { stroke: colour("line"), width: 1 };
      const axis = { stroke: colour("faint"), grid, ticks: grid, font: "11px system-ui", size: 30 };
      each.replaceChildren();
      new uPlot({
        width: each.clientWidth, height: each.clientHeight, legend: { show: false }, cursor: { y: false },
        tzDate: (at) => utc ? uPlot.tzDate(new Date(at * 1000), "Etc/UTC") : new Date(at * 1000),
        scales: { y: { range: (_, least, most) => [0, most > 0 ? most * 1.1 : 1] } },
        axes: [{ ...axis, values: (_, ticks) => ticks.map((tick) => { const at = new Date(tick * 1000), text = clockOf(at, utc).slice(0, 5); return text === "00:00" ? dayOf(at, utc).slice(5) : text; }) }, { ...axis, size: 58, values: (_, ticks) => ticks.map((tick) => unit !== "s" ? (Number.isInteger(tick) ? tick : "") : tick && tick < 1 ? `${Math.round(tick * 1000)} ms` : tick < 120 ? `${tick} s` : brief(tick)) }],
        series: [{}, ...series.map((line) => ({ label: line.label, stroke: colour(line.color), fill: line.fill ? colour(`${line.color}-tint`) : undefined, width: 1.5, points: { show: false } }))],
      }, [x, ...series.map((line) => line.values)], each);
    }
  };

  // ------------------------------------------------------------------ choosing rows
  const chosen = () => {
    const boxes = all("[data-choose]"), on = boxes.filter((box) => box.checked);
    for (const box of boxes) box.closest("tr")?.classList.toggle("chosen", box.checked);
    const bar = $("chosen-bar");
    if (bar) { bar.hidden = !on.length; const text = $("chosen-number"); if (text) write(text, fill(say.tChosen, { number: on.length })); }
    const every = $("choose-all");
    if (every) { every.checked = on.length > 0 && on.length === boxes.length; every.indeterminate = on.length > 0 && on.length < boxes.length; }
  };
  document.addEventListener("change", (event) => {
    if (event.target.id === "choose-all") for (const box of all("[data-choose]")) box.checked = event.target.checked;
    if (event.target.matches("[data-choose], #choose-all")) chosen();
    if (event.target.matches("[data-submit]")) event.target.form.requestSubmit();
    if (event.target.id === "keys-off") remember("holdfast_keys", event.target.checked ? "off" : "on");
  });

  // ------------------------------------------------------------------ keys
  let here = -1, hereId = null, leader = -Infinity;
  const rows = () => all("[data-row]");
  const move = (by) => {
    const list = rows();
    if (!list.length) return;
    here = Math.max(0, Math.min(list.length - 1, here + by));
    list.forEach((row, at) => row.classList.toggle("here", at === here));
    hereId = list[here].id;
    list[here].scrollIntoView({ block: "nearest" });
    list[here].querySelector("a[href]")?.focus({ preventScroll: true });
  };
  const redraw = () => { for (const each of all("[data-chart]")) each.drawn = null; drawCharts(); };
  addEventListener("resize", redraw);
  const keepRow = () => { const at = rows().findIndex((row) => hereId && row.id === hereId); if (at >= 0) { here = at; rows()[at].classList.add("here"); } };
  const theme = () => {
    const order = ["auto", "light", "dark"], next = order[(order.indexOf(root.dataset.theme) + 1) % 3];
    root.dataset.theme = next; remember("holdfast_theme", next);
    redraw();
  };
  const zone = () => { utc = !utc; remember("holdfast_zone", utc ? "utc" : "local"); showZone(); showTimes(); redraw(); };
  const showZone = () => { const each = $("zone-button"); if (each) write(each, utc ? each.dataset.utc : each.dataset.local); };
  const keys = {
    "/": () => all("[data-search]")[0]?.focus(), j: () => move(1), k: () => move(-1), r: pause, t: theme,
    "?": () => $("help")?.showModal(),
    x: () => { const box = rows()[here]?.querySelector("[data-choose]"); if (box) { box.checked = !box.checked; chosen(); } },
  };
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || cookie("holdfast_keys") === "off") return;
    if (event.target.matches("input, textarea, select") || document.querySelector("dialog[open]")) {
      if (event.key === "Escape" && event.target.matches("input, textarea, select")) event.target.blur();
      return;
    }
    if (performance.now() - leader < 1200) {
      leader = -Infinity;
      const link = document.querySelector(`[data-key="${CSS.escape(event.key)}"]`);
      if (link) { event.preventDefault(); link.click(); return; }
    }
    if (event.key === "g") { leader = performance.now(); return; }
    const act = all("details.act", rows()[here])[Number(event.key) - 1]; // a number opens an act; it never acts
    if (here >= 0 && rows()[here]?.matches("article") && act) {
      event.preventDefault(); act.open = true; act.querySelector("textarea, select, input:not([type=hidden])")?.focus();
      return;
    }
    if (keys[event.key]) { event.preventDefault(); keys[event.key](); }
  });

  // ------------------------------------------------------------------ copying
  document.addEventListener("click", async (event) => {
    const from = event.target.closest?.("[data-copy]");
    if (!from) return;
    const text = from.dataset.copy, label = from.textContent;
    try { await navigator.clipboard.writeText(text); } catch { // plain HTTP
      const area = document.body.appendChild(document.createElement("textarea"));
      area.value = text; area.select(); document.execCommand("copy"); area.remove();
    }
    write(from, say.tCopied);
    setTimeout(() => write(from, label), 1500);
  });

  button?.addEventListener("click", pause);
  $("theme-button")?.addEventListener("click", theme);
  $("zone-button")?.addEventListener("click", zone);
  $("help-button")?.addEventListener("click", keys["?"]);
  const off = $("keys-off");
  if (off) off.checked = cookie("holdfast_keys") === "off";
  if ($("said")) { const clean = new URL(location); clean.searchParams.delete("said"); history.replaceState(null, "", clean); }
  document.querySelector(".rail [aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" }); // a narrow screen
  showZone(); showTimes(); drawCharts(); chosen(); open();
})();
