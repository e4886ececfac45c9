// Where addresses lie on the map: memory as lines of text, each pool and stream with a heading.
//
// What was ever mapped has its place, mapped or not, so nothing moves while the reader goes through the history.

const MAP_ROW = { height: 24, bar: 18, heading: 30, gap: 6, margin: 8 };

// With the least number of bytes to a pixel the map has about so many rows.
const USUAL_ROWS = 26;

// Ranges that were mapped at any time, by owner and address.
function areasOf(device) {
  if (device.areas === undefined) {
    device.areas = [];
    const { address, bytes, owner } = device.pieces;
    let last = null;
    for (let piece = 0; piece < address.length; piece += 1) {
      const end = address[piece] + bytes[piece];
      if (last !== null && last.owner === owner[piece] && address[piece] <= last.end) {
        last.end = Math.max(last.end, end);
      } else {
        last = { owner: owner[piece], start: address[piece], end };
        device.areas.push(last);
      }
    }
  }
  return device.areas;
}

function usualBytesPerPixel(device, width) {
  const total = areasOf(device).reduce((sum, { start, end }) => sum + end - start, 0);
  return Math.max(1, total / (Math.max(100, width - 2 * MAP_ROW.margin) * USUAL_ROWS));
}

// `runs` are the parts of areas that lie in one row, by owner and address; `headings` stand above each owner's.
function layOut(device, width, bytesPerPixel) {
  const right = width - MAP_ROW.margin;
  const runs = [];
  const headings = [];
  let [x, y] = [MAP_ROW.margin, 0];
  let owner = null;
  for (const area of areasOf(device)) {
    if (area.owner !== owner) {
      if (owner !== null) y += MAP_ROW.height;
      headings.push({ y, owner: area.owner });
      y += MAP_ROW.heading;
      x = MAP_ROW.margin;
      owner = area.owner;
    } else if (right - x < Math.min(40, (area.end - area.start) / bytesPerPixel + 3)) {
      x = MAP_ROW.margin;
      y += MAP_ROW.height;
    }
    for (let start = area.start; start < area.end;) {
      // A row's end of a pixel or two would only look like a thick line.
      if (right - x < 3) {
        x = MAP_ROW.margin;
        y += MAP_ROW.height;
      }
      const end = Math.min(area.end, start + Math.max(1, Math.floor((right - x) * bytesPerPixel)));
      runs.push({ x, y, owner, start, end, width: Math.max(2, (end - start) / bytesPerPixel) });
      x += Math.max(2, (end - start) / bytesPerPixel);
      start = end;
    }
    x += MAP_ROW.gap;
  }
  return { width, bytesPerPixel, runs, headings, height: y + MAP_ROW.height + MAP_ROW.margin };
}

// The run that has an address of an owner; the first behind it if none has.
function runAt(layout, owner, address) {
  const { runs } = layout;
  let [low, high] = [0, runs.length];
  while (low < high) {
    const middle = (low + high) >>> 1;
    const run = runs[middle];
    if (run.owner < owner || (run.owner === owner && run.end <= address)) low = middle + 1;
    else high = middle;
  }
  return low;
}

// The rectangles of a range of addresses: calls `visit(x, y, width, from, to)`.
function visitRectangles(layout, owner, start, end, visit) {
  for (let at = runAt(layout, owner, start); at < layout.runs.length; at += 1) {
    const run = layout.runs[at];
    if (run.owner !== owner || run.start >= end) return;
    const from = Math.max(start, run.start);
    const x = run.x + (from - run.start) / layout.bytesPerPixel;
    const to = Math.min(end, run.end);
    visit(x, run.y, (to - from) / layout.bytesPerPixel, from, to);
  }
}

// The address and its owner at a place, or nothing.
function addressAt(layout, x, y) {
  const run = layout.runs.find((one) => y >= one.y && y < one.y + MAP_ROW.bar && x >= one.x && x < one.x + one.width);
  return run === undefined
    ? null
    : { owner: run.owner, address: Math.min(run.end - 1, run.start + (x - run.x) * layout.bytesPerPixel) };
}
