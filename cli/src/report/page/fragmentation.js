// Fragmentation over time, by two measures that need different answers.

const MEASURES = [
  {
    name: "unused: 1 - in use / reserved",
    dash: [],
    ink: "accent",
    at: (device, moment) => share(device.figures.free[moment], device.figures.reserved[moment]),
  },
  {
    name: "scattered: 1 - largest free / free",
    dash: [5, 3],
    ink: "alarm",
    at: (device, moment) =>
      share(device.figures.free[moment] - device.figures.largestFree[moment], device.figures.free[moment]),
  },
];

function share(part, whole) {
  return whole > 0 ? part / whole : 0;
}

function setUpFragmentation(panel) {
  panel.append(element("h2", {}, "Fragmentation"));
  const values = MEASURES.map(() => element("span", { class: "value" }));
  const entries = MEASURES.map((measure, index) =>
    element("li", {}, [lineSample(measure), element("span", { class: "name" }, measure.name), " ", values[index]]),
  );
  const { paint, paintMoment } = setUpChart(
    panel,
    "Fragmentation over time. Left and right go from moment to moment.",
    drawFragmentation,
    (frame, x) => {
      const moment = frame.momentAt(x);
      return MEASURES.map((measure) => `${measure.name.split(":")[0]} ${formatShare(measure.at(view.device, moment))}`);
    },
  );
  panel.append(element("ul", { class: "legend lines" }, entries));
  panel.append(
    element(
      "p",
      { class: "quiet" },
      "Much unused and little scattered is memory that could be given back. Much of both is memory that is split: a large request finds no place in it.",
    ),
  );
  watch(["device", "axis", "window"], paint, "time");
  watch(
    ["device", "moment"],
    () => {
      paintMoment();
      MEASURES.forEach((measure, index) => {
        values[index].textContent = formatShare(measure.at(view.device, view.moment));
      });
    },
    "time",
  );
}

function lineSample({ dash, ink }) {
  return svg("svg", { viewBox: "0 0 28 10", class: `line ${ink}`, "aria-hidden": "true" }, [
    svg("path", { d: "M0 5H28", "stroke-dasharray": dash.join(" ") }),
  ]);
}

function drawFragmentation(pen, frame) {
  const { device } = view;
  const yOf = (value) => frame.bottom - value * (frame.bottom - frame.top);
  const ticks = [0, 0.25, 0.5, 0.75, 1].map((value) => ({ y: yOf(value), text: formatShare(value) }));
  drawAxes(pen, frame, ticks, frame.xTicks());
  for (const measure of MEASURES) {
    pen.strokeStyle = inks[measure.ink];
    pen.lineWidth = 1.75;
    pen.setLineDash(measure.dash);
    pen.beginPath();
    // Lowest and highest of each pixel, so that nothing short is lost.
    frame.columns((x, first, last) => {
      let [low, high] = [1, 0];
      for (let moment = first; moment <= last; moment += 1) {
        const value = measure.at(device, moment);
        low = Math.min(low, value);
        high = Math.max(high, value);
      }
      pen.lineTo(x + 0.5, yOf(low));
      if (high > low) pen.lineTo(x + 0.5, yOf(high));
    });
    pen.stroke();
  }
  pen.setLineDash([]);
}
