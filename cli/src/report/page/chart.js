// A chart over the history: which part of it is shown, and what pointers and keys do. What is drawn in it is the caller's.

const MARGIN = { left: 72, right: 14, top: 18, bottom: 24 };

// Fewer units of the axis than this are not shown: one event, or a microsecond.
const LEAST_WINDOW = 1;

function windowNow() {
  return view.window ?? [0, axisEnd(view.device, view.axis)];
}

function setWindow(from, to) {
  const end = axisEnd(view.device, view.axis);
  const length = Math.min(end, Math.max(LEAST_WINDOW, to - from));
  const start = Math.max(0, Math.min(from, end - length));
  change({ window: length >= end ? null : [start, start + length] });
}

// Makes what is shown so many times as long, around a place.
function zoom(factor, around = null) {
  const [from, to] = windowNow();
  const centre = around ?? Math.min(to, Math.max(from, axisPlaces(view.device, view.axis)[view.moment]));
  setWindow(centre - (centre - from) * factor, centre + (to - centre) * factor);
}

function pan(share) {
  const [from, to] = windowNow();
  const by = (to - from) * share;
  setWindow(from + by, to + by);
}

// `draw(pen, frame)` draws, `tip(frame, x, y)` has the lines for a place that is pointed at. The moment is on a canvas of its own,
// because it changes when nothing else does. Returns what paints either.
function setUpChart(parent, label, draw, tip) {
  const holder = element("div", {
    class: "chart",
    tabindex: 0,
    role: "application",
    "aria-label": label,
    "aria-roledescription": "chart",
  });
  parent.append(holder);
  let brush = null;
  let frame = null;
  const below = makeCanvas(holder, { "aria-hidden": "true" }, (pen, width, height) => {
    frame = makeFrame(width, height);
    draw(pen, frame);
  });
  const { canvas, paint: paintMoment } = makeCanvas(holder, { class: "above", "aria-hidden": "true" }, (pen) => {
    if (frame === null) return;
    drawMoment(pen, frame);
    if (brush !== null) drawBrush(pen, frame, brush);
  });
  const paint = () => {
    below.paint();
    paintMoment();
  };
  const place = (event) => {
    const box = canvas.getBoundingClientRect();
    return { x: event.clientX - box.left, y: event.clientY - box.top };
  };
  canvas.addEventListener("pointerdown", (event) => {
    if (event.button !== 0 || frame === null) return;
    canvas.setPointerCapture(event.pointerId);
    brush = { from: place(event).x, to: place(event).x };
  });
  canvas.addEventListener("pointermove", (event) => {
    if (frame === null) return;
    const { x, y } = place(event);
    if (brush !== null) {
      brush.to = x;
      paintMoment();
    }
    const lines = brush === null && x >= frame.left && x <= frame.right ? tip(frame, x, y) : null;
    if (lines === null) hideTip();
    else showTip(event, lines);
  });
  canvas.addEventListener("pointerleave", hideTip);
  canvas.addEventListener("pointercancel", () => {
    brush = null;
    paintMoment();
  });
  canvas.addEventListener("pointerup", () => {
    if (brush === null) return;
    const [from, to] = [Math.min(brush.from, brush.to), Math.max(brush.from, brush.to)];
    brush = null;
    // A hand that presses moves a little.
    if (to - from < 5) change({ moment: frame.momentAt(from) });
    else setWindow(frame.axisAt(from), frame.axisAt(to));
    paintMoment();
  });
  canvas.addEventListener("dblclick", () => change({ window: null }));
  // With a key, because without one a wheel scrolls the page.
  canvas.addEventListener(
    "wheel",
    (event) => {
      if (!event.ctrlKey && !event.metaKey && !event.shiftKey) return;
      event.preventDefault();
      if (event.shiftKey) pan(Math.sign(event.deltaY || event.deltaX) * 0.1);
      else zoom(event.deltaY > 0 ? 1.25 : 0.8, frame.axisAt(place(event).x));
    },
    { passive: false },
  );
  holder.addEventListener("keydown", (event) => {
    const move = (by) => change({ moment: Math.max(0, Math.min(view.device.last, view.moment + by)) });
    const act = {
      ArrowLeft: () => (event.shiftKey ? pan(-0.2) : move(-1)),
      ArrowRight: () => (event.shiftKey ? pan(0.2) : move(1)),
      "+": () => zoom(0.5),
      "=": () => zoom(0.5),
      "-": () => zoom(2),
      0: () => change({ window: null }),
    }[event.key];
    if (act === undefined || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    act();
  });
  return { paint, paintMoment };
}

// Where a chart's moments lie on a canvas.
function makeFrame(width, height) {
  const places = axisPlaces(view.device, view.axis);
  const [from, to] = windowNow();
  const left = MARGIN.left;
  const right = width - MARGIN.right;
  const scale = (right - left) / (to - from);
  const axisAt = (x) => from + (x - left) / scale;
  const momentAt = (x) => Math.max(0, lastUpTo(places, Math.max(from, Math.min(to, axisAt(x)))));
  return {
    left,
    right,
    top: MARGIN.top,
    bottom: height - MARGIN.bottom,
    margin: MARGIN.right,
    from,
    to,
    places,
    axisAt,
    momentAt,
    xOf: (moment) => left + (places[moment] - from) * scale,
    xTicks: () => {
      const format = view.axis === "time" ? (us) => (us === 0 ? "0" : formatDuration(us)) : formatCount;
      const numbers = roundNumbers(from, to, Math.max(2, Math.floor(width / 110)));
      return numbers.map((number) => ({ x: left + (number - from) * scale, text: format(number) }));
    },
    // For each pixel from left to right calls `visit(x, first, last)` with the moments that it stands for.
    columns: (visit) => {
      let moment = Math.max(0, lastUpTo(places, from));
      for (let x = left; x < right; x += 1) {
        const first = moment;
        const end = axisAt(x + 1);
        while (moment < view.device.last && places[moment + 1] <= end) moment += 1;
        visit(x, first, moment);
      }
    },
  };
}

function drawMoment(pen, frame) {
  const x = Math.round(frame.xOf(view.moment)) + 0.5;
  if (x < frame.left - 1 || x > frame.right + 1) return;
  pen.strokeStyle = inks.accent;
  pen.lineWidth = 2;
  pen.beginPath();
  pen.moveTo(x, frame.top - 6);
  pen.lineTo(x, frame.bottom);
  pen.stroke();
  pen.fillStyle = inks.accent;
  pen.beginPath();
  pen.moveTo(x - 5, frame.top - 12);
  pen.lineTo(x + 5, frame.top - 12);
  pen.lineTo(x, frame.top - 5);
  pen.fill();
}

function drawBrush(pen, frame, { from, to }) {
  pen.globalAlpha = 0.2;
  pen.fillStyle = inks.accent;
  pen.fillRect(Math.min(from, to), frame.top, Math.abs(to - from), frame.bottom - frame.top);
  pen.globalAlpha = 1;
}
