// The map: every segment at the chosen moment with what lies in it.

const mapView = { layout: null, zoom: 1, paint: null };

function setUpMap(panel) {
  const zoomBy = (factor) => {
    mapView.zoom = Math.max(1 / 4, Math.min(4096, mapView.zoom * factor));
    layOutMap();
    mapView.paint();
    revealSelected();
  };
  const scale = element("span", { class: "quiet", id: "map-scale" });
  panel.append(
    element("div", { class: "tools" }, [button("Zoom in", {}, () => zoomBy(2)), button("Zoom out", {}, () => zoomBy(1 / 2)), scale]),
    mapKey(),
  );
  const scroller = element("div", {
    class: "map", id: "map", tabindex: 0, role: "application", "aria-roledescription": "segment map",
    "aria-label": "Segments and their blocks. Left and right select the block before or behind, up and down go from segment to segment, plus and minus zoom, comma and full stop go from moment to moment.",
  });
  const spacer = element("div", { class: "spacer" });
  panel.append(scroller);
  const { canvas, paint } = makeCanvas(scroller, { "aria-hidden": "true" }, drawMap);
  scroller.append(spacer);
  Object.assign(mapView, { scroller, spacer, scale, canvas, paint });
  scroller.addEventListener("scroll", () => paint());
  canvas.addEventListener("click", (event) => {
    const { block } = partUnder(event);
    change({ selected: block });
  });
  canvas.addEventListener("pointermove", (event) => {
    const part = partUnder(event);
    if (part.kind === undefined) hideTip();
    else showTip(event, partLines(part));
  });
  canvas.addEventListener("pointerleave", hideTip);
  scroller.addEventListener("keydown", (event) => mapKeyPressed(event, zoomBy));
  setUpLegend(panel, "map");
  watch(["device"], () => {
    mapView.zoom = 1;
    scroller.scrollTop = 0;
    layOutMap();
  }, "map");
  watch(["device", "grouping", "moment", "highlight"], paint, "map");
  watch(["selected"], () => {
    revealSelected();
    paint();
  }, "map");
}

function layOutMap() {
  const width = mapView.canvas.clientWidth;
  if (width === 0) return;
  const bytesPerPixel = usualBytesPerPixel(view.device, width) / mapView.zoom;
  mapView.layout = layOut(view.device, width, bytesPerPixel);
  // The canvas stays in sight and has its own height already.
  mapView.spacer.style.height = `${Math.max(0, mapView.layout.height - mapView.canvas.clientHeight)}px`;
  mapView.scale.textContent = `A row is ${formatBytes(bytesPerPixel * (width - 2 * MAP_ROW.margin))}.`;
}

// What is not a block, by name and picture.
function mapKey() {
  const entry = (name, draw) => {
    const picture = element("canvas", { width: 28, height: 14, class: "swatch", "aria-hidden": "true" });
    const pen = picture.getContext("2d");
    watch(["device"], () => {
      pen.clearRect(0, 0, 28, 14);
      draw(pen);
    }, "map");
    return element("li", {}, [picture, element("span", { class: "name" }, name)]);
  };
  return element("ul", { class: "legend key" }, [
    entry("free", (pen) => drawPart(pen, PART.free, 0, 0, 28, 14, null)),
    entry("free, but less than a page", (pen) => drawPart(pen, PART.small, 0, 0, 28, 14, null)),
    entry("freed, still in use by queued work", (pen) => drawPart(pen, PART.pending, 0, 0, 28, 14, OTHER_PAINT)),
    entry("kept", (pen) => drawPart(pen, PART.kept, 0, 0, 28, 14, KEPT_PAINT)),
    entry("not mapped now", (pen) => drawHole(pen, 0, 0, 28, 14)),
  ]);
}

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
    visitRectangles(layout, segment.owner, segment.start, segment.end, (x, y, wide) => {
      if (isShown(y)) pen.strokeRect(x + 0.5, y + 0.5, Math.max(1, wide - 1), MAP_ROW.bar - 1);
    });
  }
  drawHeadings(pen, layout, isShown, width);
  drawSelected(pen, layout, state);
}

// Those parts of a segment that are free, or those that are not.
function drawParts(pen, layout, state, groups, segment, isShown, isFree) {
  // Many blocks may share a pixel: the first of them is drawn.
  let drawnTo = { x: -1, y: -1 };
  visitParts(state, segment, (kind, start, end, block) => {
    if (isFree !== block < 0) return;
    const isDim = block >= 0 && view.highlight >= 0 && bandOf(groups, block) !== view.highlight;
    visitRectangles(layout, segment.owner, start, end, (x, y, wide) => {
      if (!isShown(y) || (drawnTo.y === y && x + wide < drawnTo.x)) return;
      const width = Math.max(isFree ? 0.5 : 2, wide);
      pen.globalAlpha = isDim ? 0.2 : 1;
      if (isFree) drawPart(pen, kind, x, y, width, MAP_ROW.bar, null);
      else drawPart(pen, kind, x, y, width, MAP_ROW.bar, paintOf(groups, block), groupName(groups, block));
      drawnTo = { x: x + width - 0.5, y };
    });
  });
  pen.globalAlpha = 1;
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
    pen.fillStyle = inks.hole;
    pen.fillRect(x, y, width, height);
    drawStripes(pen, x, y, width, height);
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

function drawStripes(pen, x, y, width, height) {
  pen.save();
  pen.beginPath();
  pen.rect(x, y, width, height);
  pen.clip();
  pen.strokeStyle = inks.alarm;
  pen.lineWidth = 1;
  pen.globalAlpha *= 0.7;
  pen.beginPath();
  for (let at = x - (x % 7) - 14 - height; at < x + width; at += 7) {
    pen.moveTo(at, y + height);
    pen.lineTo(at + height, y);
  }
  pen.stroke();
  pen.restore();
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
  while (shown.length > 2 && pen.measureText(shown).width > width) shown = `${shown.slice(0, Math.ceil(shown.length * 0.8) - 1)}…`;
  return shown;
}

function ownerText(owner) {
  const of = view.report.names.owners[owner];
  if (of === undefined) return "unknown pool";
  return of.stream === "0" ? `pool ${of.pool}` : `pool ${of.pool}, stream ${of.stream}`;
}

function drawHeadings(pen, layout, isShown, width) {
  pen.font = "600 13px system-ui, sans-serif";
  pen.textAlign = "left";
  pen.textBaseline = "alphabetic";
  pen.fillStyle = inks.ink;
  for (const { y, owner } of layout.headings) {
    if (isShown(y)) pen.fillText(shortened(pen, ownerText(owner), width - 2 * MAP_ROW.margin), MAP_ROW.margin, y + MAP_ROW.heading - 9);
  }
}

function isThere(state, block) {
  const { begin, end } = state.device.blocks;
  return block >= 0 && begin[block] <= state.moment && state.moment < end[block];
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

// The part of a segment at an address.
function partAt(state, owner, address) {
  let found = {};
  const segment = state.segments.find((one) => one.owner === owner && one.start <= address && address < one.end);
  if (segment === undefined) return { kind: -1, block: -1 };
  visitParts(state, segment, (kind, start, end, block) => {
    if (start <= address && address < end) found = { kind, start, end, block };
  });
  return found;
}

function partUnder(event) {
  const box = mapView.canvas.getBoundingClientRect();
  const place = addressAt(mapView.layout, event.clientX - box.left, event.clientY - box.top + mapView.scroller.scrollTop);
  return place === null ? { block: -1 } : partAt(stateNow(), place.owner, place.address);
}

function partLines({ kind, start, end, block }) {
  if (kind === -1) return ["not mapped at this moment"];
  const size = formatBytes(end - start);
  if (block < 0) return [`${size} ${PART_NAMES[kind]}`, formatAddress(start)];
  const site = siteText(view.report, view.device.blocks.stack[block]);
  return [groupName(groupsNow(), block), `${size}, ${PART_NAMES[kind]}`, ...(site === "" ? [] : [site]), formatAddress(start)];
}

// Scrolls to the selected block.
function revealSelected() {
  const block = view.selected;
  if (mapView.layout === null || block < 0) return;
  const { owner, address } = view.device.blocks;
  const run = mapView.layout.runs[runAt(mapView.layout, owner[block], address[block])];
  if (run === undefined) return;
  const { scroller } = mapView;
  if (run.y < scroller.scrollTop || run.y + MAP_ROW.height > scroller.scrollTop + scroller.clientHeight) {
    scroller.scrollTop = run.y - scroller.clientHeight / 2;
  }
}

function mapKeyPressed(event, zoomBy) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const state = stateNow();
  const act = {
    ArrowRight: () => selectBeside(state, 1),
    ArrowLeft: () => selectBeside(state, -1),
    ArrowDown: () => selectInSegmentBeside(state, 1),
    ArrowUp: () => selectInSegmentBeside(state, -1),
    "+": () => zoomBy(2),
    "=": () => zoomBy(2),
    "-": () => zoomBy(1 / 2),
    ",": () => change({ moment: Math.max(0, view.moment - 1) }),
    ".": () => change({ moment: Math.min(view.device.last, view.moment + 1) }),
    Escape: () => change({ selected: -1 }),
  }[event.key];
  if (act === undefined) return;
  event.preventDefault();
  act();
}

// Blocks as the map has them, segment after segment, and where each segment's begin.
function orderOnMap(state) {
  if (state.order === undefined) {
    const listed = [];
    const starts = [];
    for (const segment of state.segments) {
      starts.push(listed.length);
      let last = -1;
      visitParts(state, segment, (_, start, end, block) => {
        if (block >= 0 && block !== last) listed.push(block);
        last = block;
      });
    }
    state.order = { listed, starts: starts.filter((start, at) => start < (starts[at + 1] ?? listed.length)) };
  }
  return state.order;
}

function selectBeside(state, by) {
  const { listed } = orderOnMap(state);
  if (listed.length === 0) return;
  const at = listed.indexOf(view.selected);
  const to = at < 0 ? (by > 0 ? 0 : listed.length - 1) : Math.max(0, Math.min(listed.length - 1, at + by));
  change({ selected: listed[to] });
}

function selectInSegmentBeside(state, by) {
  const { listed, starts } = orderOnMap(state);
  if (listed.length === 0) return;
  const at = Math.max(0, lastUpTo(starts, Math.max(0, listed.indexOf(view.selected))));
  const to = view.selected < 0 ? 0 : Math.max(0, Math.min(starts.length - 1, at + by));
  change({ selected: listed[starts[to]] });
}
