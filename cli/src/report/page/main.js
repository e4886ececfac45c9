// Opens the data and sets up what shows it.

function setUpChoices() {
  const { report } = view;
  const devices = byId("device");
  watch(["device"], () => {
    devices.value = report.devices.indexOf(view.device);
  });
  devices.append(...report.devices.map(({ name }, index) => element("option", { value: index }, name)));
  byId("device-choice").hidden = report.devices.length < 2;
  devices.addEventListener("change", () => showDevice(report.devices[devices.value]));
  const groupings = byId("grouping");
  groupings.append(...GROUPINGS.map(({ id, name }) => element("option", { value: id }, name)));
  groupings.value = view.grouping;
  groupings.addEventListener("change", () => change({ grouping: groupings.value, highlight: -1, group: -1 }));
}

function showDevice(device) {
  change({ device, moment: device.last, selected: -1, highlight: -1, group: -1, window: null });
}

function describeReport(report) {
  const events = report.devices.reduce((sum, { last }) => sum + last, 0);
  const parts = [
    report.timeUs > 0 && `Snapshot of ${formatDate(report.timeUs)}`,
    formatCounted(report.devices.length, "device"),
    events > 0 ? `history of ${formatCounted(events, "event")}` : "no history",
  ];
  return parts.filter(Boolean).join(" · ");
}

// What is shown, for the browser's console and for tests.
function exposeView() {
  globalThis.mempool = {
    view,
    change,
    // Draws what changed at once, instead of with the next picture.
    draw: drawChanged,
    // The blocks of the chosen moment in order of address, as [address, bytes, whether queued work alone still uses it].
    blocks: () =>
      stateNow().blocks.map((block) => [
        view.device.blocks.address[block],
        view.device.blocks.bytes[block],
        kindOf(view.device, block, view.moment) === PART.pending,
      ]),
    segments: () => stateNow().segments.map(({ start, end }) => [start, end - start]),
    figures: () => {
      const { bytes, free, largestFree, reserved } = totalsOf(stateNow(), stateNow().segments);
      return { free, largestFree, reserved, small: bytes[PART.small] };
    },
  };
}

async function open() {
  const report = await decode(byId("data").textContent);
  byId("data").remove();
  document.title = `${report.title} – memory`;
  byId("title").textContent = report.title;
  byId("subtitle").textContent = describeReport(report);
  if (report.devices.length === 0) {
    byId("loading").textContent = "The snapshot has no pool and no memory.";
    setUpTheme(() => {});
    byId("grouping").parentElement.hidden = true;
    document.body.dataset.ready = Math.round(performance.now());
    return;
  }
  view.report = report;
  // The device with most memory is what the reader came for.
  view.device = report.devices.reduce((most, device) =>
    device.occupied[device.peak] > most.occupied[most.peak] ? device : most,
  );
  view.grouping = bestGrouping(report);
  view.moment = view.device.last;
  view.tab = view.device.last > 0 ? "time" : "map";
  byId("loading").hidden = true;
  byId("content").hidden = false;
  setUpChoices();
  setUpSummary();
  setUpMoment();
  setUpTabs();
  setUpTimeline(byId("panel-time"));
  setUpFragmentation(byId("panel-time"));
  setUpMap(byId("panel-map"));
  setUpBlocks(byId("panel-blocks"));
  setUpPools(byId("panel-pools"));
  setUpDetails();
  exposeView();
  setUpTheme(drawAll);
  window.addEventListener("resize", drawAll);
  drawChanged();
  // After so many milliseconds.
  document.body.dataset.ready = Math.round(performance.now());
}

open().catch((error) => {
  byId("loading").hidden = false;
  byId("loading").textContent = `The page could not be opened: ${error.message}`;
  throw error;
});
