// What is known of the selected block.

function setUpDetails() {
  const pane = byId("details");
  watch(["device", "grouping", "selected", "moment", "tab"], () => {
    pane.hidden = view.tab === "pools" || view.tab === "time";
    if (pane.hidden) return;
    const focused = pane.contains(document.activeElement) ? document.activeElement.textContent : null;
    pane.replaceChildren(...(view.selected < 0 ? noDetails() : detailsOf(view.selected)));
    if (focused === null) return;
    const buttons = [...pane.querySelectorAll("button")];
    (buttons.find((one) => one.textContent === focused) ?? buttons[0] ?? pane).focus();
  });
  // Said once for each block; the pane itself changes with each moment.
  watch(["selected"], () => {
    const block = view.selected;
    const { address, bytes } = view.device.blocks;
    const describe = () => [groupName(groupsNow(), block), formatBytes(bytes[block]), formatAddress(address[block])];
    byId("announced").textContent = block < 0 ? "" : describe().join(", ");
  });
}

function noDetails() {
  return [
    element("h2", {}, "Block"),
    element(
      "p",
      { class: "quiet" },
      "None is selected. Press one, or go to the map with the tabulator and use the arrows.",
    ),
  ];
}

function detailsOf(block) {
  const { report, device } = view;
  const groups = groupsNow();
  const terms = describeBlock(report, device, block, view.moment);
  const isNow = isThere(stateNow(), block);
  return [
    element("h2", {}, [swatch(paintOf(groups, block)), ` ${groupName(groups, block)}`]),
    ...(isNow ? [] : [element("p", { class: "message" }, "It is not there at this moment.")]),
    element(
      "dl",
      {},
      terms.map(([name, value]) => element("div", {}, [element("dt", {}, name), element("dd", {}, value)])),
    ),
    ...stackOf(report, device.blocks.stack[block]),
    element("div", { class: "tools" }, detailButtons(device, block)),
  ];
}

// Names and texts of what is known.
function describeBlock(report, device, block, moment) {
  const { blocks } = device;
  const { labels, threads } = report.names;
  const isKept = (blocks.flags[block] & IS_KEPT) !== 0;
  const isNow = isThere(stateNow(), block);
  const terms = [
    ["State", isNow ? PART_NAMES[kindOf(device, block, moment)] : ""],
    ["Size", formatBytes(blocks.bytes[block])],
    ["Asked for", isKept && blocks.requested[block] === 0 ? "" : `${formatCount(blocks.requested[block])} bytes`],
    ["Address", formatAddress(blocks.address[block])],
    ["Pool", ownerText(blocks.owner[block])],
  ];
  if (isKnown(device, block)) {
    const step = blocks.step[block];
    const position =
      blocks.position[block] === NONE ? "" : `, allocation ${formatCount(blocks.position[block] + 1)} of it`;
    terms.push(
      ["Label", labels[blocks.label[block]]],
      ["Call site", siteText(report, blocks.stack[block])],
      ["Thread", threads[blocks.thread[block]]],
      ["Step", step === NONE || !device.hasSteps ? "" : `${formatCount(step)}${position}`],
    );
  } else if (!isKept) {
    terms.push(["Allocated", "before the history, or without one: who did is not known"]);
  }
  const since = allocatedAt(device, block);
  if (since > 0) {
    if (isNow) terms.push(["Age", formatDuration(ageOf(device, block, moment))]);
    terms.push(["Since", formatDate(since)]);
  }
  if (blocks.end[block] !== NONE) terms.push(["Gone at", `moment ${formatCount(blocks.end[block])}`]);
  return terms.filter(([, value]) => value !== "" && value !== undefined);
}

// Microseconds since 1970, or 0 where it is not known.
function allocatedAt(device, block) {
  const begin = device.blocks.begin[block];
  return begin > 0 ? device.times[begin] : device.blocks.time[block];
}

// Microseconds from its allocation to a moment; for the last moment, to the snapshot.
function ageOf(device, block, moment) {
  const since = allocatedAt(device, block);
  if (since === 0) return null;
  const now = moment === device.last ? Math.max(view.report.timeUs, device.times[moment]) : device.times[moment];
  return Math.max(0, now - since);
}

function stackOf(report, stack) {
  if (stack === NONE) return [];
  const { frames, stacks } = report.names;
  const { site, frames: numbers } = stacks[stack];
  if (numbers.length < 2) return [];
  const items = numbers.map((number) =>
    element("li", number === site ? { "aria-current": "true" } : {}, [
      element("span", { class: "name" }, frames[number].name || "?"),
      element("span", { class: "quiet" }, ` ${placeText(frames[number])}`),
    ]),
  );
  return [element("h3", {}, "Stack, innermost first"), element("ol", { class: "stack" }, items)];
}

function detailButtons(device, block) {
  const { begin, end } = device.blocks;
  const shown = [];
  if (begin[block] > 0) shown.push(button("To its allocation", {}, () => change({ moment: begin[block] })));
  if (end[block] !== NONE) shown.push(button("To just before its end", {}, () => change({ moment: end[block] - 1 })));
  if (view.tab !== "map")
    shown.push(
      button("Show on the map", {}, () => {
        change({ tab: "map" });
        requestAnimationFrame(() => {
          revealSelected();
          byId("map").focus();
        });
      }),
    );
  shown.push(button("Close", {}, () => change({ selected: -1 })));
  return shown;
}
