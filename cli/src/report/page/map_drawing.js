// What the map looks like: segments, what lies in them, and what is free.

function drawMap(pen, width, height) {
  if (mapView.layout === null || mapView.layout.width !== width) layOutMap();
  const { layout } = mapView;
  const top = mapView.scroller.scrollTop;
  const isShown = (y) => y + MAP_ROW.height >= top && y <= top + height;
  pen.translate(0, -top);
  for (const run of layout.runs) {
    if (isShown(run.y)) drawHole(pen, run.x, run.y, run.width, MAP_ROW.bar);
  }
  const state = stateNow();
  const groups = groupsNow();
  for (const segment of state.segments) {
    const first = layout.runs[runAt(layout, segment.owner, segment.start)];
    const last = layout.runs[runAt(layout, segment.owner, segment.end - 1)];
    if (first === undefined || last === undefined || first.y > top + height || last.y + MAP_ROW.height < top) continue;
    // First what is free, because a block of less than a pixel has to be seen on it.
    for (const isFree of [true, false]) drawParts(pen, layout, state, groups, segment, isShown, isFree);
    pen.strokeStyle = inks.ink;
    pen.lineWidth = 1;
    visitRectangles(layout, segment.owner, segment.start, segment.end, (x, y, wide, from, to) => {
      if (isShown(y)) drawOutline(pen, x, y, Math.max(2, wide), from === segment.start, to === segment.end);
    });
  }
  drawHeadings(pen, layout, isShown, width);
  drawSelected(pen, layout, state);
}

// An outline that is open where the segment goes on in another row.
function drawOutline(pen, x, y, width, begins, ends) {
  const [left, top, right, bottom] = [x + 0.5, y + 0.5, x + width - 0.5, y + MAP_ROW.bar - 0.5];
  pen.beginPath();
  pen.moveTo(left, bottom);
  if (begins) pen.lineTo(left, top);
  else pen.moveTo(left, top);
  pen.lineTo(right, top);
  if (ends) pen.lineTo(right, bottom);
  else pen.moveTo(right, bottom);
  pen.lineTo(left, bottom);
  pen.stroke();
}

// Those parts of a segment that are free, or those that are not.
function drawParts(pen, layout, state, groups, segment, isShown, isFree) {
  // Many blocks may share a pixel: the first of them is drawn.
  let drawnTo = { x: -1, y: -1 };
  // What is too narrow for a pattern, by its colour: another colour for each of thousands takes longer than drawing them.
  const narrow = new Map();
  visitParts(state, segment, (kind, start, end, block) => {
    if (isFree !== block < 0) return;
    const isDim = block >= 0 && view.highlight >= 0 && bandOf(groups, block) !== view.highlight;
    visitRectangles(layout, segment.owner, start, end, (x, y, wide) => {
      if (!isShown(y) || (drawnTo.y === y && x + wide < drawnTo.x)) return;
      const width = Math.max(isFree ? 0.5 : 2, wide);
      drawnTo = { x: x + width - 0.5, y };
      if (kind === PART.live && width < 5 && !isDim) {
        const { fill } = paintOf(groups, block);
        if (!narrow.has(fill)) narrow.set(fill, []);
        narrow.get(fill).push(x, y, width >= 3 ? width - 0.75 : width);
        return;
      }
      pen.globalAlpha = isDim ? 0.2 : 1;
      if (isFree) drawPart(pen, kind, x, y, width, MAP_ROW.bar, null);
      else drawPart(pen, kind, x, y, width, MAP_ROW.bar, paintOf(groups, block), groupName(groups, block));
    });
  });
  pen.globalAlpha = 1;
  for (const [fill, bars] of narrow) {
    pen.fillStyle = fill;
    for (let at = 0; at < bars.length; at += 3) pen.fillRect(bars[at], bars[at + 1], bars[at + 2], MAP_ROW.bar);
  }
}

function drawHole(pen, x, y, width, height) {
  pen.strokeStyle = inks.line;
  pen.setLineDash([2, 3]);
  pen.lineWidth = 1;
  pen.strokeRect(x + 0.5, y + 0.5, Math.max(1, width - 1), height - 1);
  pen.setLineDash([]);
}

function drawPart(pen, kind, x, y, width, height, paint, name = "") {
  if (kind === PART.free) {
    pen.fillStyle = inks.raised;
    pen.fillRect(x, y, width, height);
    return;
  }
  if (kind === PART.small) {
    pen.fillStyle = stripes(pen);
    pen.fillRect(x, y, width, height);
    return;
  }
  pen.fillStyle = width < 5 ? paint.fill : paint.pattern;
  pen.fillRect(x, y, width, height);
  if (width >= 3) {
    pen.fillStyle = inks.paper;
    pen.fillRect(x + width - 0.75, y, 0.75, height);
  }
  if (kind === PART.pending) {
    pen.fillStyle = inks.paper;
    pen.fillRect(x, y + height * 0.55, width, height * 0.45);
    pen.fillStyle = paint.fill;
    pen.fillRect(x, y + height - 3, width, 3);
  }
  if (name !== "" && width > 46 && kind !== PART.pending) drawNameIn(pen, x, y, width, height, paint, name);
}

let stripesMade = { ink: null, pattern: null };

// The pattern of free memory that is too small for much, in the theme's colours.
function stripes(pen) {
  if (stripesMade.ink !== inks.alarm) {
    const size = 8;
    const tile = element("canvas", { width: size, height: size }).getContext("2d");
    tile.fillStyle = inks.hole;
    tile.fillRect(0, 0, size, size);
    tile.strokeStyle = inks.alarm;
    tile.globalAlpha = 0.75;
    tile.stroke(new Path2D(`M0 ${size}L${size} 0M-1 1L1 -1M${size - 1} ${size + 1}L${size + 1} ${size - 1}`));
    stripesMade = { ink: inks.alarm, pattern: pen.createPattern(tile.canvas, "repeat") };
  }
  return stripesMade.pattern;
}

function drawNameIn(pen, x, y, width, height, paint, name) {
  pen.font = "11px system-ui, sans-serif";
  const shown = shortened(pen, name, width - 10);
  if (shown.length <= 3 && shown !== name) return;
  const wide = pen.measureText(shown).width;
  pen.fillStyle = paint.fill;
  pen.fillRect(x + 2, y + 2, wide + 6, height - 4);
  pen.fillStyle = paint.text;
  pen.textAlign = "left";
  pen.textBaseline = "middle";
  pen.fillText(shown, x + 5, y + height / 2 + 0.5);
}

// What of a text fits into a width.
function shortened(pen, text, width) {
  let shown = text;
  while (shown.length > 2 && pen.measureText(shown).width > width)
    shown = `${shown.slice(0, Math.ceil(shown.length * 0.8) - 1)}…`;
  return shown;
}

function drawHeadings(pen, layout, isShown, width) {
  pen.font = "600 13px system-ui, sans-serif";
  pen.textAlign = "left";
  pen.textBaseline = "alphabetic";
  pen.fillStyle = inks.ink;
  for (const { y, owner } of layout.headings) {
    if (isShown(y))
      pen.fillText(
        shortened(pen, ownerText(owner), width - 2 * MAP_ROW.margin),
        MAP_ROW.margin,
        y + MAP_ROW.heading - 9,
      );
  }
}

function drawSelected(pen, layout, state) {
  const block = view.selected;
  if (!isThere(state, block)) return;
  const { address, bytes, owner } = view.device.blocks;
  visitRectangles(layout, owner[block], address[block], address[block] + bytes[block], (x, y, wide) => {
    pen.lineWidth = 4;
    pen.strokeStyle = inks.paper;
    pen.strokeRect(x - 2, y - 2, wide + 4, MAP_ROW.bar + 4);
    pen.lineWidth = 2.5;
    pen.strokeStyle = inks.accent;
    pen.strokeRect(x - 2, y - 2, wide + 4, MAP_ROW.bar + 4);
  });
}
