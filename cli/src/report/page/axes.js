// Axes of charts. A chart's horizontal axis is time or the number of events; both grow from moment to moment.

// Where each moment lies: microseconds since the first, or its number.
function axisPlaces(device, axis) {
  const key = `${axis}Places`;
  device[key] ??=
    axis === "time"
      ? device.times.map((time) => time - device.times[0])
      : Float64Array.from(device.times, (_, moment) => moment);
  return device[key];
}

function axisEnd(device, axis) {
  return Math.max(1, axisPlaces(device, axis)[device.last]);
}

// Round numbers from `low` to `high`, about `count` of them; `base` is what they are round in.
function roundNumbers(low, high, count, base = 10) {
  // Bytes, events and microseconds are whole.
  const least = Math.max(1, (high - low) / count);
  const power = base ** Math.floor(Math.log(least) / Math.log(base));
  const steps = base === 2 ? [1, 2] : [1, 2, 5, 10];
  const step = power * steps.find((factor) => factor * power >= least * 0.999);
  const numbers = [];
  for (let at = Math.ceil(low / step); at * step <= high * (1 + 1e-9); at += 1) numbers.push(at * step);
  return numbers;
}

// The lines and numbers of a chart at `frame`: left, top, right and bottom in pixels.
function drawAxes(pen, frame, yTicks, xTicks) {
  pen.font = "12px system-ui, sans-serif";
  pen.lineWidth = 1;
  pen.fillStyle = inks.quiet;
  pen.strokeStyle = inks.line;
  pen.textAlign = "right";
  pen.textBaseline = "middle";
  for (const { y, text } of yTicks) {
    pen.beginPath();
    pen.moveTo(frame.left, Math.round(y) + 0.5);
    pen.lineTo(frame.right, Math.round(y) + 0.5);
    pen.stroke();
    pen.fillText(text, frame.left - 6, y);
  }
  pen.textAlign = "center";
  pen.textBaseline = "top";
  for (const { x, text } of xTicks) {
    pen.beginPath();
    pen.moveTo(Math.round(x) + 0.5, frame.bottom);
    pen.lineTo(Math.round(x) + 0.5, frame.bottom + 4);
    pen.stroke();
    const half = pen.measureText(text).width / 2;
    pen.fillText(text, Math.max(half, Math.min(x, frame.right + frame.margin - half)), frame.bottom + 6);
  }
}
