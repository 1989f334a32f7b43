"use strict";
(() => {
  const root = document.documentElement;
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const drawn = new Set();

  // -- light and dark
  const dark = () => root.dataset.theme === "dark";
  const colours = () => {
    const style = getComputedStyle(root);
    const of = (name) => style.getPropertyValue(name).trim();
    return { front: of("--front"), line: of("--line"), back: of("--back") };
  };
  const themed = (layout) => {
    const { front, line } = colours();
    const made = { ...layout, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)" };
    made.font = { ...(layout.font || {}), color: front };
    for (const key of Object.keys(layout)) {
      if (/^[xy]axis\d*$/.test(key)) {
        made[key] = { ...layout[key], gridcolor: line, linecolor: line, zerolinecolor: line };
      }
    }
    return made;
  };
  const button = document.getElementById("theme");
  const setTheme = (name) => {
    root.dataset.theme = name;
    button.textContent = name === "dark" ? "Light" : "Dark";
    if (window.Plotly) {
      for (const id of drawn) Plotly.relayout(id, themed(figures[id].layout));
    }
  };
  setTheme(window.matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  button.addEventListener("click", () => setTheme(dark() ? "light" : "dark"));

  // -- figures: the library runs after the page has been shown, a figure is drawn when it is seen
  const draw = (element) => {
    const id = element.id;
    if (drawn.has(id) || !figures[id] || !window.Plotly) return;
    drawn.add(id);
    const { data, layout } = figures[id];
    const options = { responsive: true, displaylogo: false, displayModeBar: false };
    Plotly.newPlot(id, data, themed(layout), options);
  };
  // For a page whose figures change: the newest picture is drawn when it is seen.
  window.tilewright = {
    show: (id, made) => {
      figures[id] = made;
      if (drawn.has(id)) Plotly.react(id, made.data, themed(made.layout));
      else if (near.has(id)) draw(document.getElementById(id));
    },
  };
  const near = new Set();
  const seen = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (entry.isIntersecting) near.add(entry.target.id);
      else near.delete(entry.target.id);
      if (entry.isIntersecting) draw(entry.target);
    }
  }, { rootMargin: "200px" });
  const begin = () => {
    const script = document.createElement("script");
    script.textContent = document.getElementById("plotly").textContent;
    document.body.append(script);
    for (const element of document.querySelectorAll(".chart")) seen.observe(element);
    root.dataset.ready = "true";
  };
  requestAnimationFrame(() => setTimeout(begin, 0));

  // -- tables: a heading sorts, the box above filters
  const value = (row, column) => row.cells[column].textContent.trim();
  const number = (text) => {
    const found = text.replace(/,/g, "").match(/^-?\d+(\.\d+)?(e[-+]?\d+)?/i);
    return found ? Number(found[0]) : null;
  };
  const compare = (a, b) => {
    const [x, y] = [number(a), number(b)];
    if (x !== null && y !== null) return x - y;
    // What has no number comes last either way round, which the caller sees to.
    return a.localeCompare(b, "en", { numeric: true });
  };
  for (const table of document.querySelectorAll("table.sortable")) {
    const headings = [...table.tHead.rows[0].cells];
    headings.forEach((heading, column) => {
      heading.querySelector("button").addEventListener("click", () => {
        const down = heading.getAttribute("aria-sort") === "ascending";
        for (const other of headings) other.removeAttribute("aria-sort");
        heading.setAttribute("aria-sort", down ? "descending" : "ascending");
        const body = table.tBodies[0];
        const empty = (row) => ["", "-"].includes(value(row, column));
        const rows = [...body.rows].sort((a, b) => {
          if (empty(a) !== empty(b)) return empty(a) ? 1 : -1;
          return (down ? -1 : 1) * compare(value(a, column), value(b, column));
        });
        body.append(...rows);
      });
    });
  }
  for (const box of document.querySelectorAll("input[data-filters]")) {
    const table = document.getElementById(box.dataset.filters);
    const count = document.getElementById(`${box.dataset.filters}-count`);
    const apply = () => {
      const words = box.value.toLowerCase().split(/\s+/).filter(Boolean);
      let shown = 0;
      for (const row of table.tBodies[0].rows) {
        const text = row.textContent.toLowerCase();
        row.hidden = !words.every((word) => text.includes(word));
        if (!row.hidden) shown += 1;
      }
      count.textContent = `${shown} of ${table.tBodies[0].rows.length}`;
    };
    box.addEventListener("input", apply);
    apply();
  }

  // -- copying
  for (const copy of document.querySelectorAll(".copy")) {
    copy.addEventListener("click", async () => {
      const source = document.getElementById(copy.dataset.copies);
      try {
        await navigator.clipboard.writeText(source.textContent);
        copy.textContent = "Copied";
      } catch {
        // Not allowed here: the text is selected, for the keyboard.
        getSelection().selectAllChildren(source);
        copy.textContent = "Selected";
      }
    });
  }
})();
