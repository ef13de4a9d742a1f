"use strict";
setInterval(async () => {
  if (document.hidden || document.activeElement?.type === "text" || !getSelection().isCollapsed) return;
  try {
    const answer = await fetch(location.href, { signal: AbortSignal.timeout(8000) });
    if (!answer.ok) throw new Error(answer.status);
    const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
    document.querySelector("main").replaceWith(fresh.querySelector("main"));
    document.body.classList.remove("stale");
  } catch {
    document.body.classList.add("stale");
  }
}, 5000);
