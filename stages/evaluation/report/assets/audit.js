"use strict";

function startAudit() {
  const text = document.getElementById("audit-text");
  const verdict = document.getElementById("audit-verdict");
  const rows = [...document.querySelectorAll("#audit-rows tr")];
  if (!text) return;
  const narrow = () => {
    const sought = text.value.toLowerCase();
    for (const row of rows) {
      const fits = row.textContent.toLowerCase().includes(sought);
      row.hidden = !fits || (verdict.value !== "" && row.dataset.verdict !== verdict.value);
    }
    const left = rows.filter((row) => !row.hidden).length;
    document.getElementById("audit-count").textContent = `${left} of ${rows.length}`;
  };
  text.addEventListener("input", narrow);
  verdict.addEventListener("change", narrow);
  narrow();
}

function startLinks() {
  for (const link of document.querySelectorAll("[data-episode]")) {
    link.addEventListener("click", () => {
      show(document.getElementById("tab-episodes"), true);
      address(`episodes/${link.dataset.episode}`);
      openEpisode(link.dataset.episode);
    });
  }
}

startTabs();
startCharts();
startEpisodes();
startAudit();
startLinks();
followHash();
