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
    element("div", { class: "tools" }, [
      button("Zoom in", {}, () => zoomBy(2)),
      button("Zoom out", {}, () => zoomBy(1 / 2)),
      scale,
    ]),
    mapKey(),
  );
  const scroller = element("div", {
    class: "map",
    id: "map",
    tabindex: 0,
    role: "application",
    "aria-roledescription": "segment map",
    "aria-label":
      "Segments and their blocks. Left and right select the block before or behind, up and down go from segment to segment, plus and minus zoom, comma and full stop go from moment to moment.",
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
  watch(
    ["device"],
    () => {
      mapView.zoom = 1;
      scroller.scrollTop = 0;
      layOutMap();
    },
    "map",
  );
  watch(["device", "grouping", "moment", "highlight"], paint, "map");
  watch(
    ["selected"],
    () => {
      revealSelected();
      paint();
    },
    "map",
  );
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
    watch(
      ["device"],
      () => {
        pen.clearRect(0, 0, 28, 14);
        draw(pen);
      },
      "map",
    );
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

// The part of a segment at an address.
function partAt(state, owner, address) {
  let found = { block: -1 };
  const segment = state.segments.find((one) => one.owner === owner && one.start <= address && address < one.end);
  if (segment === undefined) return { kind: -1, block: -1 };
  visitParts(state, segment, (kind, start, end, block) => {
    if (start <= address && address < end) found = { kind, start, end, block };
  });
  return found;
}

function partUnder(event) {
  const box = mapView.canvas.getBoundingClientRect();
  const place = addressAt(
    mapView.layout,
    event.clientX - box.left,
    event.clientY - box.top + mapView.scroller.scrollTop,
  );
  return place === null ? { block: -1 } : partAt(stateNow(), place.owner, place.address);
}

function partLines({ kind, start, end, block }) {
  if (kind === -1) return ["not mapped at this moment"];
  const size = formatBytes(end - start);
  if (block < 0) return [`${size} ${PART_NAMES[kind]}`, formatAddress(start)];
  const site = siteText(view.report, view.device.blocks.stack[block]);
  return [
    groupName(groupsNow(), block),
    `${size}, ${PART_NAMES[kind]}`,
    ...(site === "" ? [] : [site]),
    formatAddress(start),
  ];
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
