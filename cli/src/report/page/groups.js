// Blocks by what they have in common: a label, a call site, a thread.

// Groups that get a colour; with more, neighbours could not be told apart.
const COLOURED_GROUPS = 8;

// How blocks are grouped: `code(block)` is a number and `name(code)` what it stands for.
const GROUPINGS = [
  { id: "label", name: "label", make: (report, device) => byLabel(report, device, (label) => label) },
  { id: "outer", name: "outermost label", make: (report, device) => byLabel(report, device, outermost) },
  { id: "site", name: "call site", make: bySite },
  { id: "thread", name: "thread", make: byThread },
  { id: "pool", name: "pool", make: (report, device) => byOwner(report, device, ({ pool }) => pool) },
  {
    id: "stream",
    name: "stream",
    make: (report, device) => byOwner(report, device, ({ stream }) => `stream ${stream}`),
  },
];

const UNKNOWN = "(allocated before the history)";

function outermost(label) {
  return label.split("/", 1)[0];
}

// Numbers for texts.
function numbered(texts) {
  const codes = new Map();
  const codeOf = texts.map((text) => {
    if (!codes.has(text)) codes.set(text, codes.size);
    return codes.get(text);
  });
  return { codeOf, names: [...codes.keys()] };
}

// Whether it is known who allocated a block.
function isKnown(device, block) {
  const flags = device.blocks.flags[block];
  return (flags & HAS_ORIGIN) !== 0 && (flags & IS_OLDER) === 0;
}

function byLabel(report, device, part) {
  const { codeOf, names } = numbered(report.names.labels.map(part));
  return {
    code: (block) => (isKnown(device, block) ? codeOf[device.blocks.label[block]] : -1),
    name: (code) => (code < 0 ? UNKNOWN : names[code] || "(no label)"),
  };
}

function bySite(report, device) {
  const { codeOf, names } = numbered(report.names.stacks.map((_, stack) => siteText(report, stack)));
  const { stack } = device.blocks;
  return {
    code: (block) => (!isKnown(device, block) ? -1 : stack[block] === NONE ? -2 : codeOf[stack[block]]),
    name: (code) => (code === -1 ? UNKNOWN : code === -2 ? "(no call site)" : names[code]),
  };
}

function byThread(report, device) {
  const { threads } = report.names;
  return {
    code: (block) => (isKnown(device, block) ? device.blocks.thread[block] : -1),
    name: (code) => (code < 0 ? UNKNOWN : threads[code] || "(no name)"),
  };
}

function byOwner(report, device, part) {
  const { codeOf, names } = numbered(report.names.owners.map(part));
  const { owner } = device.blocks;
  return {
    code: (block) => (owner[block] === NONE ? -1 : codeOf[owner[block]]),
    name: (code) => (code < 0 ? "(unknown)" : names[code]),
  };
}

// The grouping that tells most about a report: by label where there are labels, by their outermost parts where there are more
// than colours, else by call site.
function bestGrouping({ names }) {
  const outer = numbered(names.labels.map(outermost)).names;
  if (names.labels.length > COLOURED_GROUPS + 1 && outer.length > 2 && outer.length < names.labels.length / 2)
    return "outer";
  if (names.labels.length > 1) return "label";
  return names.stacks.length > 0 ? "site" : "pool";
}

const groupsMade = new Map();

// The groups of a device: `groupOf` has each block's (-1 for what is kept), `groups` their names, peaks and bands, `bands` what
// is drawn, and `series` the bytes of each band at each moment, moment by moment.
function groupsOf(report, device, id) {
  const key = `${report.devices.indexOf(device)} ${id}`;
  if (!groupsMade.has(key)) groupsMade.set(key, makeGroups(report, device, id));
  return groupsMade.get(key);
}

function makeGroups(report, device, id) {
  const { code, name } = GROUPINGS.find((grouping) => grouping.id === id).make(report, device);
  const { flags } = device.blocks;
  const groupOf = new Int32Array(flags.length).fill(-1);
  const codes = new Map();
  const groups = [];
  for (let block = 0; block < flags.length; block += 1) {
    if (flags[block] & IS_KEPT) continue;
    const own = code(block);
    if (!codes.has(own)) {
      codes.set(own, groups.length);
      groups.push({ name: name(own), now: 0, peak: 0, band: 0 });
    }
    groupOf[block] = codes.get(own);
  }
  followGroups(device, groupOf, groups);
  const bands = makeBands(device, groups);
  const keptBand = bands.findIndex((band) => band.isKept);
  return {
    keptBand,
    groupOf,
    groups,
    bands,
    series: makeSeries(device, groupOf, groups, bands),
  };
}

// Calls `change(moment, block, bytes)` for each block that comes or goes, in the order of time.
function followBlocks(device, change) {
  const { events, blocks } = device;
  for (let block = 0; block < blocks.begin.length; block += 1) {
    if (blocks.begin[block] === 0 && (blocks.flags[block] & IS_KEPT) === 0) change(0, block, blocks.bytes[block]);
  }
  for (let moment = 1; moment <= device.last; moment += 1) {
    const block = events.block[moment - 1];
    if (block === NONE) continue;
    if (blocks.begin[block] === moment) change(moment, block, blocks.bytes[block]);
    else if (blocks.end[block] === moment) change(moment, block, -blocks.bytes[block]);
  }
}

function followGroups(device, groupOf, groups) {
  followBlocks(device, (_, block, bytes) => {
    const group = groups[groupOf[block]];
    group.now += bytes;
    if (group.now > group.peak) group.peak = group.now;
  });
}

// Bands of a chart, the lowest first: the groups with the highest peaks, all others as one, and what is kept.
function makeBands(device, groups) {
  const order = [...groups].sort((one, other) => other.peak - one.peak);
  const coloured = order.slice(0, COLOURED_GROUPS);
  const bands = coloured.map((group, index) => {
    group.band = index;
    return { name: group.name, paint: PAINTS[index], peak: group.peak };
  });
  const others = order.slice(COLOURED_GROUPS);
  if (others.length > 0) {
    others.forEach((group) => {
      group.band = bands.length;
    });
    bands.push({ name: `${formatCount(others.length)} others`, paint: OTHER_PAINT, peak: 0 });
  }
  if (device.blocks.flags.some((flags) => flags & IS_KEPT)) {
    bands.push({ name: "kept for steps and buffers", paint: KEPT_PAINT, peak: 0, isKept: true });
  }
  return bands;
}

function makeSeries(device, groupOf, groups, bands) {
  const count = bands.length;
  const series = new Float32Array(count * (device.last + 1));
  // Sums in full precision: rounded ones would drift over many events.
  const now = new Float64Array(count);
  const kept = bands.findIndex((band) => band.isKept);
  let live = 0;
  let written = -1;
  const writeUpTo = (moment) => {
    for (let at = written + 1; at <= moment; at += 1) {
      if (kept >= 0) now[kept] = Math.max(0, device.occupied[at] - live);
      bands.forEach((band, index) => {
        band.peak = Math.max(band.peak, now[index]);
      });
      series.set(now, at * count);
    }
    written = moment;
  };
  followBlocks(device, (moment, block, bytes) => {
    if (moment - 1 > written) writeUpTo(moment - 1);
    now[groups[groupOf[block]].band] += bytes;
    live += bytes;
  });
  writeUpTo(device.last);
  return series;
}
