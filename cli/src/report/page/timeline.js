// Memory over time: what is in use as a stack of bands, and what is reserved as a line.

function setUpTimeline(panel) {
  panel.append(chartTools());
  panel.append(element("h2", {}, "Memory in use and reserved"));
  const { paint, paintMoment } = setUpChart(
    panel,
    "Memory over time. Left and right go from moment to moment, plus and minus zoom, Shift with left and right moves the part that is shown, 0 shows all.",
    drawTimeline,
    timelineTip,
  );
  const paintOverview = setUpOverview(panel);
  setUpLegend(panel, "time");
  watch(["device", "grouping", "highlight", "axis", "window"], paint, "time");
  watch(["device", "moment"], paintMoment, "time");
  watch(["device", "axis", "window"], paintOverview, "time");
}

// What is shown of the axis, for those who do not drag.
function chartTools() {
  const axis = element("select", { id: "axis" }, [
    element("option", { value: "time" }, "time"),
    element("option", { value: "events" }, "events, evenly spaced"),
  ]);
  axis.addEventListener("change", () => change({ axis: axis.value, window: null }));
  return element("div", { class: "tools" }, [
    element("label", {}, ["Horizontal axis ", axis]),
    button("Zoom in", {}, () => zoom(0.5)),
    button("Zoom out", {}, () => zoom(2)),
    button("◀ Earlier", {}, () => pan(-0.5)),
    button("Later ▶", {}, () => pan(0.5)),
    button("Show all", {}, () => change({ window: null })),
    element("span", { class: "quiet" }, "Drag to zoom in, press to choose a moment, Ctrl and wheel zoom."),
  ]);
}

// For each pixel the moment with most in use, so that no peak falls between two, and the highest reserved. A frame keeps them
// for what points at it.
function sampled(frame) {
  const { occupied, figures } = view.device;
  if (frame.samples !== undefined) return frame.samples;
  const samples = [];
  frame.columns((x, first, last) => {
    let best = first;
    let reserved = 0;
    for (let moment = first; moment <= last; moment += 1) {
      if (occupied[moment] > occupied[best]) best = moment;
      if (figures.reserved[moment] > reserved) reserved = figures.reserved[moment];
    }
    samples.push({ x, moment: best, reserved });
  });
  frame.samples = samples;
  return samples;
}

function drawTimeline(pen, frame) {
  const samples = sampled(frame);
  if (samples.length === 0) return;
  const most = samples.reduce(
    (most, { moment, reserved }) => Math.max(most, reserved, view.device.occupied[moment]),
    1,
  );
  const yOf = (bytes) => frame.bottom - (bytes / (most * 1.05)) * (frame.bottom - frame.top);
  frame.bytesAt = (y) => ((frame.bottom - y) / (frame.bottom - frame.top)) * most * 1.05;
  const numbers = roundNumbers(0, most * 1.05, 5, 2);
  drawAxes(
    pen,
    frame,
    numbers.map((bytes) => ({ y: yOf(bytes), text: formatBytes(bytes) })),
    frame.xTicks(),
  );
  drawBands(pen, frame, samples, yOf);
  drawReserved(pen, samples, yOf);
  drawShortages(pen, frame);
  drawPeak(pen, frame, yOf);
}

function drawBands(pen, frame, samples, yOf) {
  const { bands, series } = groupsNow();
  const count = bands.length;
  const base = new Float64Array(samples.length);
  bands.forEach((band, index) => {
    const top = samples.map(({ moment }, at) => base[at] + series[moment * count + index]);
    pen.beginPath();
    samples.forEach(({ x }, at) => {
      pen.lineTo(x, yOf(top[at]));
      pen.lineTo(x + 1, yOf(top[at]));
    });
    for (let at = samples.length - 1; at >= 0; at -= 1) {
      pen.lineTo(samples[at].x + 1, yOf(base[at]));
      pen.lineTo(samples[at].x, yOf(base[at]));
    }
    pen.globalAlpha = view.highlight < 0 || view.highlight === index ? 1 : 0.25;
    pen.fillStyle = band.paint.pattern;
    pen.fill();
    drawBandName(pen, frame, samples, base, top, band, yOf);
    pen.globalAlpha = 1;
    top.forEach((bytes, at) => {
      base[at] = bytes;
    });
  });
}

// Where a band is high enough for as long as its name, the name stands in it.
function drawBandName(pen, frame, samples, base, top, band, yOf) {
  pen.font = "600 12px system-ui, sans-serif";
  const width = Math.ceil(pen.measureText(band.name).width) + 12;
  // Where the room between the highest floor and the lowest ceiling over the name's width is most.
  let best = { room: 16 };
  for (let start = 0; start + width < samples.length; start += 8) {
    let [floor, ceiling] = [0, Infinity];
    for (let at = start; at < start + width; at += 2) {
      floor = Math.max(floor, base[at]);
      ceiling = Math.min(ceiling, top[at]);
    }
    const room = yOf(floor) - yOf(ceiling);
    if (room > best.room) best = { room, start, y: (yOf(floor) + yOf(ceiling)) / 2 };
  }
  if (best.start === undefined) return;
  const x = frame.left + best.start;
  pen.fillStyle = band.paint.fill;
  pen.fillRect(x + 2, best.y - 8, width - 4, 16);
  pen.fillStyle = band.paint.text;
  pen.textAlign = "left";
  pen.textBaseline = "middle";
  pen.fillText(band.name, x + 6, best.y + 1);
}

function drawReserved(pen, samples, yOf) {
  pen.strokeStyle = inks.ink;
  pen.lineWidth = 1.5;
  // Dashed where it is not told but taken from the snapshot.
  pen.setLineDash(view.device.tellsReserved || view.device.last === 0 ? [] : [6, 4]);
  pen.beginPath();
  for (const { x, reserved } of samples) {
    pen.lineTo(x, yOf(reserved));
    pen.lineTo(x + 1, yOf(reserved));
  }
  pen.stroke();
  pen.setLineDash([]);
  const last = samples[samples.length - 1];
  pen.fillStyle = inks.ink;
  pen.font = "12px system-ui, sans-serif";
  pen.textAlign = "right";
  pen.textBaseline = "bottom";
  pen.fillText("reserved", last.x - 2, yOf(last.reserved) - 2);
}

// Requests that found no memory.
function drawShortages(pen, frame) {
  const { kind } = view.device.events;
  pen.strokeStyle = inks.alarm;
  pen.lineWidth = 2.5;
  for (let event = kind.indexOf(KIND.outOfMemory); event >= 0; event = kind.indexOf(KIND.outOfMemory, event + 1)) {
    const x = frame.xOf(event + 1);
    if (x < frame.left || x > frame.right) continue;
    pen.stroke(new Path2D(`M${x - 5} ${frame.top}l10 10m0 -10l-10 10`));
  }
}

function drawPeak(pen, frame, yOf) {
  const { device } = view;
  const x = frame.xOf(device.peak);
  if (x < frame.left || x > frame.right) return;
  const y = yOf(device.occupied[device.peak]);
  pen.fillStyle = inks.paper;
  pen.strokeStyle = inks.ink;
  pen.lineWidth = 2;
  pen.beginPath();
  pen.arc(x, y, 5, 0, 2 * Math.PI);
  pen.fill();
  pen.stroke();
  const text = `peak ${formatBytes(device.occupied[device.peak])}`;
  pen.font = "600 12px system-ui, sans-serif";
  const width = pen.measureText(text).width + 10;
  const left = x + 10 + width < frame.right ? x + 10 : x - 10 - width;
  const top = Math.max(frame.top, y - 24);
  pen.fillStyle = inks.paper;
  pen.globalAlpha = 0.85;
  pen.fillRect(left, top, width, 18);
  pen.globalAlpha = 1;
  pen.fillStyle = inks.ink;
  pen.textAlign = "left";
  pen.textBaseline = "middle";
  pen.fillText(text, left + 5, top + 10);
}

function timelineTip(frame, x, y) {
  const { device } = view;
  const sample = sampled(frame)[Math.floor(x - frame.left)];
  if (sample === undefined || frame.bytesAt === undefined) return null;
  const { bands, series } = groupsNow();
  const bytes = frame.bytesAt(y);
  let base = 0;
  const at = bands.findIndex((_, index) => {
    base += series[sample.moment * bands.length + index];
    return bytes >= 0 && bytes < base;
  });
  const share = at < 0 ? [] : [`${bands[at].name}: ${formatBytes(series[sample.moment * bands.length + at])}`];
  return [
    ...share,
    `in use ${formatBytes(device.occupied[sample.moment])} of ${formatBytes(sample.reserved)} reserved`,
    `moment ${formatCount(sample.moment)}, ${formatDuration(device.times[device.last] - device.times[sample.moment])} before the end`,
  ];
}
