"use strict";
addEventListener("DOMContentLoaded", () => {
  const at = (id) => document.getElementById(id);
  const columns = [...at("rows").tHead.rows[0].cells].map((cell) => cell.textContent);
  const body = at("rows").tBodies[0];
  let latest = null;
  let phase = "";

  const say = (element, text) => {
    if (element.textContent !== text) element.textContent = text;
  };
  // Cells are kept and only their text is changed: a table that is made anew loses what is selected.
  const fill = (rows) => {
    while (body.rows.length > rows.length) body.deleteRow(-1);
    rows.forEach((cells, number) => {
      const row = body.rows[number] || body.insertRow();
      cells.forEach((text, column) => {
        let cell = row.cells[column];
        if (!cell) {
          cell = row.insertCell();
          cell.dataset.label = columns[column];
          if (column) cell.className = "number";
        }
        say(cell, text);
      });
    });
  };
  const show = () => {
    const told = latest;
    latest = null;
    say(at("headline"), told.headline);
    document.title = `${told.headline}: tuning`;
    say(at("status"), told.status);
    at("trials").max = Math.max(1, told.limit);
    at("trials").value = told.done;
    // A screen reader hears of phases, not of every second.
    const now = told.status.split("  ")[0];
    if (now !== phase) say(at("news"), (phase = now));
    fill(told.rows);
    say(at("more"), told.more ? `and ${told.more} others` : "");
    if (told.lines) {
      const box = at("lines");
      const below = box.scrollHeight - box.scrollTop - box.clientHeight < 40;
      say(box, told.lines.join("\n"));
      if (below) box.scrollTop = box.scrollHeight;
    }
    for (const [id, made] of Object.entries(told.figures || {})) tilewright.show(id, made);
    document.documentElement.dataset.version = told.version;
  };
  const source = new EventSource("events");
  source.addEventListener("run", (message) => {
    const waiting = latest !== null;
    const kept = waiting ? latest : {};
    // What an older message brought and no newer one has is still to be drawn.
    latest = { ...kept, ...JSON.parse(message.data) };
    if (!waiting) requestAnimationFrame(show);
  });
  source.addEventListener("end", () => {
    source.close();
    document.documentElement.dataset.ended = "true";
  });
  source.addEventListener("error", () => say(at("news"), "no connection to tilewright watch"));
});
