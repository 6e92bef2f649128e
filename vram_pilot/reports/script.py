"""The script of an interactive report. It asks nobody for anything; see `interactive`. Pure."""

SCRIPT = """
(() => {
  "use strict";
  const { figures, dark } = JSON.parse(document.getElementById("figures").textContent);
  const isDark = matchMedia("(prefers-color-scheme: dark)");
  const isNarrow = matchMedia("(max-width: 640px)");
  const isTouch = matchMedia("(pointer: coarse)");
  const lives = new Map();
  let moving = false;

  const painted = (value, key = "") => {
    if (Array.isArray(value)) return typeof value[0] === "object" ? value.map((entry) => painted(entry, key)) : value;
    if (value && typeof value === "object")
      return Object.fromEntries(Object.entries(value).map(([name, entry]) => [name, painted(entry, name)]));
    return isDark.matches && /color$/.test(key) ? (dark[value] ?? value) : value;
  };

  const layout = ({ layout }, range) => ({
    ...painted(layout),
    title: undefined,
    height: undefined,
    autosize: true,
    showlegend: false,
    margin: { l: 74, r: 10, t: 10, b: isNarrow.matches ? 30 : layout.margin.b - 10 },
    annotations: isNarrow.matches ? [] : painted(layout.annotations ?? []),
    dragmode: isTouch.matches ? false : "zoom",
    xaxis: { ...painted(layout.xaxis), range: range ?? layout.xaxis.range, nticks: isNarrow.matches ? 5 : 10 },
  });

  const config = (name) => ({
    responsive: true,
    displaylogo: false,
    displayModeBar: isTouch.matches ? false : "hover",
    toImageButtonOptions: { format: "png", scale: 2, filename: name },
    modeBarButtons: [[
      "zoom2d", "pan2d", "resetScale2d", "toImage",
      {
        name: "toSvg",
        title: "Download plot as an SVG",
        icon: Plotly.Icons.disk,
        click: (chart) => Plotly.downloadImage(chart, { format: "svg", filename: name }),
      },
    ]],
  });

  const everywhere = async (from) => {
    if (moving) return;
    moving = true;
    const range = [...from.layout.xaxis.range];
    for (const live of lives.keys()) if (live !== from) await Plotly.relayout(live, { "xaxis.range": range });
    moving = false;
  };

  const draw = async (plot) => {
    const name = plot.dataset.chart;
    const live = document.createElement("div");
    live.className = "live";
    plot.append(live);
    plot.classList.add("drawn");
    try {
      live.setAttribute("role", "img");
      live.setAttribute("aria-label", figures[name].layout.title.text);
      await Plotly.newPlot(live, painted(figures[name].data), layout(figures[name]), config(name));
    } catch (error) {
      plot.classList.remove("drawn");
      live.remove();
      return;
    }
    lives.set(live, figures[name]);
    live.on("plotly_relayout", (change) => {
      if (Object.keys(change).some((key) => key.startsWith("xaxis.range"))) everywhere(live);
    });
  };

  const again = () => {
    for (const [live, figure] of lives) Plotly.react(live, painted(figure.data), layout(figure, live.layout.xaxis.range));
  };

  const start = async () => {
    for (const plot of document.querySelectorAll("[data-chart]"))
      if (plot.dataset.chart in figures) {
        await draw(plot);
        await new Promise((done) => setTimeout(done, 0));
      }
    for (const query of [isDark, isNarrow]) query.addEventListener("change", again);
  };

  start();
})();
"""
