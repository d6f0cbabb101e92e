"use strict";
// One stream of events for the page: every part of it at first, then the parts that have changed.  The server has
// escaped all names in them, and the security policy of the page runs no script but this one.
(() => {
  const STALE_MS = 15000; // the server sends an event at least every 5 s, and asks its sources as often
  const AGAIN_MS = 1500;
  const live = document.getElementById("live");
  const pause = document.getElementById("pause");
  let source = null;
  let again = null;
  let heardAt = Date.now();
  let isPaused = false;

  function show(word, look) {
    if (live.textContent !== word) live.textContent = word;
    live.className = "live " + look;
  }

  function tell() {
    const age = Math.round((Date.now() - heardAt) / 1000);
    if (isPaused) show("paused", "warning");
    else if (source === null) show("disconnected", "disconnected");
    else if (Date.now() - heardAt > STALE_MS) show("stale " + age + " s", "stale");
  }

  function heard(ageS) {
    heardAt = Date.now() - (ageS || 0) * 1000; // when the oldest numbers of the page were read
    if (Date.now() - heardAt > STALE_MS) tell();
    else show("live", "good");
  }

  function isBeingRead(section) {
    const selection = document.getSelection();
    return selection !== null && !selection.isCollapsed && section.contains(selection.anchorNode);
  }

  function replace(section, markup) {
    const focused = section.contains(document.activeElement) ? document.activeElement : null;
    const place = focused && focused.getAttribute("href");
    const label = focused && focused.getAttribute("aria-label");
    const scrolled = [...section.querySelectorAll(".scroll")].map((one) => one.scrollLeft);
    section.innerHTML = markup;
    section.querySelectorAll(".scroll").forEach((one, number) => (one.scrollLeft = scrolled[number] || 0));
    if (focused) {
      const same = [...section.querySelectorAll("a, .scroll")].find((one) =>
        place ? one.getAttribute("href") === place : label !== null && one.getAttribute("aria-label") === label
      );
      if (same) same.focus({ preventScroll: true });
    }
  }

  function open() {
    close();
    if (isPaused || document.hidden) return;
    source = new EventSource("/stream" + location.pathname + location.search);
    source.addEventListener("parts", (event) => {
      const update = JSON.parse(event.data);
      heard(update.age_s);
      for (const [name, markup] of Object.entries(update.parts)) {
        const section = document.getElementById(name);
        if (section && !isBeingRead(section)) replace(section, markup);
      }
    });
    source.onerror = () => {
      close();
      tell();
      again = setTimeout(open, AGAIN_MS);
    };
  }

  function close() {
    clearTimeout(again);
    if (source !== null) source.close();
    source = null;
  }

  pause.hidden = false;
  pause.addEventListener("click", () => {
    isPaused = !isPaused;
    pause.textContent = isPaused ? "Go on" : "Pause";
    if (isPaused) close();
    else open();
    tell();
  });
  // A browser has few connections for one address: a hidden tab takes none.
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) close();
    else open();
  });
  window.addEventListener("pagehide", close);
  setInterval(tell, 1000);
  open();
})();
