// Figures by pool and stream at the chosen moment, and those that pools have counted since they were made.

function setUpPools(panel) {
  const bytesColumn = (name, value) => ({ name, sort: value, cell: (row) => formatBytes(value(row)) });
  const shareColumn = (name, value) => ({ name, sort: value, cell: (row) => formatShare(value(row)) });
  const owners = makeTable(
    "By pool and stream, at this moment",
    [
      { name: "Pool", isText: true, sort: (row) => row.pool.toLowerCase(), cell: (row) => row.pool },
      { name: "Stream", isText: true, sort: (row) => row.stream, cell: (row) => row.stream },
      { name: "Segments", sort: (row) => row.segments, cell: (row) => formatCount(row.segments) },
      { name: "Blocks", sort: (row) => row.blocks, cell: (row) => formatCount(row.blocks) },
      bytesColumn("Reserved", (row) => row.reserved),
      bytesColumn("Live", (row) => row.bytes[PART.live]),
      bytesColumn("Freed, in use", (row) => row.bytes[PART.pending]),
      bytesColumn("Kept", (row) => row.bytes[PART.kept]),
      bytesColumn("Free", (row) => row.free),
      bytesColumn("In small gaps", (row) => row.bytes[PART.small]),
      bytesColumn("Largest free", (row) => row.largestFree),
      shareColumn("Unused", (row) => share(row.free, row.reserved)),
      shareColumn("Scattered", (row) => share(row.free - row.largestFree, row.free)),
    ],
    { column: "Reserved", isDown: true },
    50,
  );
  const countColumn = (name, key) => ({ name, sort: (row) => row[key], cell: (row) => formatCount(row[key]) });
  const counted = makeTable(
    "What pools counted, when the snapshot was taken",
    [
      { name: "Pool", isText: true, sort: (row) => row.name.toLowerCase(), cell: (row) => row.name },
      bytesColumn("Requested", (row) => row.requested),
      bytesColumn("Peak requested", (row) => row.requestedPeak),
      bytesColumn("Allocated", (row) => row.allocated),
      bytesColumn("Peak allocated", (row) => row.allocatedPeak),
      bytesColumn("Reserved", (row) => row.reserved),
      bytesColumn("Peak reserved", (row) => row.reservedPeak),
      bytesColumn("Largest free", (row) => row.largestFree),
      countColumn("Hits", "hits"),
      countColumn("Misses", "misses"),
      countColumn("Map calls", "mapCalls"),
      countColumn("Unmap calls", "unmapCalls"),
      countColumn("Bypassed", "bypassed"),
      countColumn("Overflows", "overflows"),
      countColumn("Failures", "failures"),
    ],
    { column: "Reserved", isDown: true },
    50,
  );
  const devices = makeTable(
    "Devices, when the snapshot was taken",
    [
      {
        name: "Device",
        isText: true,
        sort: ({ device }) => device.name,
        cell: ({ device }) => button(device.name, { class: "link" }, () => showDevice(device)),
      },
      bytesColumn("Reserved", (row) => row.reserved),
      bytesColumn("In use", (row) => row.reserved - row.free),
      bytesColumn("Peak in use", ({ device }) => device.occupied[device.peak]),
      bytesColumn("Free", (row) => row.free),
      bytesColumn("Largest free", (row) => row.largestFree),
      shareColumn("Unused", (row) => share(row.free, row.reserved)),
    ],
    { column: "Reserved", isDown: true },
    50,
    ({ device }) => (device === view.device ? { "aria-current": "true" } : {}),
  );
  panel.append(owners.element, counted.element, devices.element);
  devices.element.hidden = view.report.devices.length < 2;
  watch(["device"], () => devices.show(view.report.devices.map(deviceRow)), "pools");
  watch(["device", "moment"], () => owners.show(ownerRows()), "pools");
  watch(
    ["device"],
    () => {
      counted.element.hidden = view.device.pools.length === 0;
      counted.show(view.device.pools);
    },
    "pools",
  );
}

function deviceRow(device) {
  const { reserved, free, largestFree } = device.figures;
  return { device, reserved: reserved[device.last], free: free[device.last], largestFree: largestFree[device.last] };
}

function ownerRows() {
  const state = stateNow();
  const byOwner = new Map();
  for (const segment of state.segments) {
    if (!byOwner.has(segment.owner)) byOwner.set(segment.owner, []);
    byOwner.get(segment.owner).push(segment);
  }
  return [...byOwner].map(([owner, segments]) => ({
    ...(view.report.names.owners[owner] ?? { pool: "unknown", stream: "" }),
    ...totalsOf(state, segments),
  }));
}
