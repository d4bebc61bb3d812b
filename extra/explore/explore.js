/* Explorers of the book: a chart with sliders below a figure, drawn when a reader opens its box.
 *
 * A box is `details.vitscope-explore` with a place for the chart and a Vega-Lite chart as JSON. Vega, Vega-Lite
 * and vega-embed lie beside this file and are loaded when the first box is opened; nothing comes from elsewhere.
 * `usermeta.vitscope` of a chart says what the table of values below it reads (lib/vitscope/explore.py).
 */
(() => {
  "use strict";

  const HERE = new URL(".", document.currentScript.src);
  const LIBRARIES = ["vega.min.js", "vega-lite.min.js", "vega-embed.min.js"];
  const STYLE = `
    .vitscope-explore-controls form, .vitscope-explore-controls {
      display: flex; flex-wrap: wrap; gap: .4em 1.4em; margin: .4em 0; }
    .vitscope-explore-controls .vega-bind { max-width: 100%; }
    .vitscope-explore-controls label { display: flex; flex-wrap: wrap; gap: .2em .5em; align-items: center; margin: 0; }
    .vitscope-explore-controls .vega-bind label > span:not(.vega-bind-name) { display: none; }
    .vitscope-explore-controls select { max-width: 100%; min-width: 0; }
    .vitscope-explore-controls input[type=range] { width: 13em; max-width: 100%; }
    .vitscope-explore-controls output { min-width: 2.5em; font-variant-numeric: tabular-nums; }
    .vitscope-explore-controls :focus-visible { outline: 3px solid currentColor; outline-offset: 2px; }
    .vitscope-explore-chart { background: white; width: 100%; overflow: hidden; }
    .vitscope-explore-values { overflow: auto; margin-top: .4em; }
    .vitscope-explore-long { max-height: 17em; }
    .vitscope-explore-values td + td { white-space: nowrap; }
    .vitscope-explore-values table { width: auto; margin: 0; border-collapse: collapse; }
    .vitscope-explore-values caption { caption-side: top; text-align: left; white-space: nowrap; padding: 0; color: inherit; }
    .vitscope-explore-values :is(th, td) { text-align: left; padding: .1em 1em .1em 0; font-weight: normal;
      font-variant-numeric: tabular-nums; border: 0; color: inherit; background: none; }
    .vitscope-explore-values thead th { opacity: 1; font-style: italic; }
    .vitscope-explore-values i { display: inline-block; width: .8em; height: .8em; margin-right: .5em; }
  `;

  const MOST_SPOKEN = 10; // rows; a longer table is not read aloud whenever a slider moves

  let libraries = null;

  /** Load the libraries one after the other, once a page; after a failure the next box tries again. */
  const load = () => {
    const one = (name) => new Promise((resolve, reject) => {
      const script = document.createElement("script");
      script.src = new URL(name, HERE).href;
      script.onload = resolve;
      script.onerror = () => reject(new Error(`${name} could not be loaded`));
      document.head.append(script);
    });
    libraries ??= LIBRARIES.reduce((before, name) => before.then(() => one(name)), Promise.resolve());
    libraries.catch(() => { libraries = null; });
    return libraries;
  };

  const made = (tag, options = {}, ...children) => {
    const element = document.createElement(tag);
    const { style, ...rest } = options;
    Object.entries(rest).forEach(([name, value]) => element.setAttribute(name, value));
    if (style) element.style.cssText = style;
    element.append(...children);
    return element;
  };

  /** Give every input of the chart an id, a name that is spoken, and the text of its value. */
  const named = (place, controls) => {
    const inputs = [...controls.querySelectorAll("input, select")];
    inputs.forEach((input) => {
      const label = input.closest(".vega-bind").querySelector(".vega-bind-name").textContent.trim();
      input.id = `${place.id}-${input.name}`;
      input.dataset.label = label;
      input.setAttribute("aria-label", label);
      if (input.type === "range") input.after(made("output", { for: input.id }));
    });
    return inputs;
  };

  const text = (meta, name, value) => meta.texts[name]?.[value] ?? String(value);

  /** The table of values at the chosen state: rows of a dataset whose columns are what the controls say. */
  const table = (spec, meta, inputs, signal) => {
    const read = meta.readout;
    const wanted = Object.entries(read.where).map(([column, name]) => [column, String(signal(name))]);
    const rows = spec.datasets[read.data].filter((row) => wanted.every(([c, v]) => String(row[c]) === v));
    if (read.sort) rows.sort((a, b) => b[read.value] - a[read.value]);
    const shown = (v) => {
      if (v === null || v === undefined) return "–";
      if (read.words) return read.words[v];
      return read.digits === null ? String(v) : v.toFixed(read.digits);
    };
    const lines = rows.map((row) => {
      const name = made("th", { scope: "row" });
      if (read.colour) name.append(made("i", { style: `background:${row[read.colour]}`, "aria-hidden": "true" }));
      name.append(row[read.name] || read.head[1]);
      const line = made("tr", {}, name, made("td", {}, shown(row[read.value])));
      line.dataset.name = row[read.name];
      const ends = [row[read.low], row[read.high]];
      if (read.low) line.append(made("td", {}, ends.includes(null) ? "–" : ends.map(shown).join(" to ")));
      return line;
    });
    const heads = [read.head[0], read.head[1], ...(read.low ? ["95 % interval"] : [])];
    const head = made("tr", {}, ...heads.map((h) => made("th", { scope: "col" }, h)));
    const lead = inputs.find((input) => input.name === read.lead);
    const caption = lead ? `${lead.dataset.label}: ${text(meta, lead.name, signal(lead.name))}` : "";
    if (!lines.length) return made("p", {}, `${caption} Nothing was measured here.`.trim());
    return made("table", {}, made("caption", {}, caption), made("thead", {}, head), made("tbody", {}, ...lines));
  };

  const draw = async (box) => {
    const place = box.querySelector(".vitscope-explore-view");
    const before = [...place.childNodes];
    try {
      const spec = JSON.parse(box.querySelector("script[type='application/json']").textContent);
      const meta = spec.usermeta.vitscope;
      await load();
      const controls = made("div", { class: "vitscope-explore-controls" });
      const chart = made("div", { class: "vitscope-explore-chart", style: `max-width:${meta.widest}px` });
      const values = made("div", { class: "vitscope-explore-values", tabindex: "0", role: "region",
        "aria-label": "values at the place chosen" }); // may scroll, so keys must reach it
      place.replaceChildren(controls, chart, values);
      const options = { mode: "vega-lite", renderer: "svg", actions: false, bind: controls, tooltip: false,
        defaultStyle: false };
      const { view } = await window.vegaEmbed(chart, spec, options);
      const inputs = named(place, controls);
      const update = () => {
        inputs.filter((input) => input.type === "range").forEach((input) => {
          const said = text(meta, input.name, view.signal(input.name));
          input.nextElementSibling.textContent = said;
          input.setAttribute("aria-valuetext", said);
        });
        values.replaceChildren(table(spec, meta, inputs, (name) => view.signal(name)));
        const long = values.querySelectorAll("tr").length > MOST_SPOKEN;
        values.setAttribute("aria-live", long ? "off" : "polite");
        values.classList.toggle("vitscope-explore-long", long);
      };
      inputs.forEach((input) => view.addSignalListener(input.name, update));
      const mark = meta.readout.mark;
      const choose = (name) => {
        if (!mark || name === undefined) return;
        view.signal(mark, view.signal(mark) === name ? "all" : name).runAsync();
      };
      view.addEventListener("click", (event, item) => choose(item?.datum?.[meta.readout.name]));
      values.addEventListener("click", (event) => choose(event.target.closest("tr")?.dataset.name));
      update();
      box.dataset.drawn = "yes";
    } catch (error) {
      const said = made("p", { role: "alert" }, `The chart could not be drawn here (${error.message}).`);
      place.replaceChildren(said, ...before);
      delete box.dataset.started;
    }
  };

  const start = (box) => {
    const opened = () => {
      if (!box.open || box.dataset.started) return;
      box.dataset.started = "yes";
      draw(box);
    };
    box.addEventListener("toggle", opened);
    opened(); // browsers keep boxes open when a page is loaded again
  };

  document.head.append(made("style", {}, STYLE));
  document.querySelectorAll("details.vitscope-explore").forEach(start);
})();
