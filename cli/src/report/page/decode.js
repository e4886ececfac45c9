// The data of the page: a header as JSON and columns behind it, in gzip and base64.

// A number that stands for none.
const NONE = 0xffff_ffff;

// Bits of a block's flags.
const IS_KEPT = 1;
const HAS_ORIGIN = 2;
const IS_OLDER = 4;

// What happened.
const KIND = {
  allocated: 0,
  freeRequested: 1,
  freeCompleted: 2,
  outOfMemory: 3,
  mapped: 4,
  unmapped: 5,
  pageMapped: 6,
  pageUnmapped: 7,
};

const ARRAYS = { u8: Uint8Array, u32: Uint32Array, f64: Float64Array, steps: Float64Array };

async function decode(text) {
  const packed = Uint8Array.from(atob(text.trim()), (character) => character.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  const buffer = await new Response(stream).arrayBuffer();
  const headerLength = new DataView(buffer).getUint32(0, true);
  const report = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, headerLength)));
  for (const device of report.devices) {
    for (const part of ["events", "blocks", "pieces", "figures"]) {
      device[part] = columns(device[part], buffer, 4 + headerLength);
    }
    complete(device);
  }
  return report;
}

function columns(described, buffer, start) {
  const read = {};
  for (const [name, { kind, offset, len }] of Object.entries(described)) {
    const values = new ARRAYS[kind](buffer, start + offset, len);
    if (kind === "steps") {
      for (let at = 1; at < len; at += 1) values[at] += values[at - 1];
    }
    read[name] = values;
  }
  return read;
}

// What follows from the columns. A moment is a number of events that have happened, so there is one more of them.
function complete(device) {
  const { events, figures } = device;
  device.last = events.kind.length;
  device.hasSteps = events.step.some((step) => step > 0);
  device.times = new Float64Array(device.last + 1);
  device.times.set(events.time, 1);
  device.times[0] = device.times[Math.min(1, device.last)];
  device.occupied = figures.reserved.map((reserved, moment) => reserved - figures.free[moment]);
  device.peak = 0;
  device.occupied.forEach((bytes, moment) => {
    if (bytes > device.occupied[device.peak]) device.peak = moment;
  });
}

// The last place in a column that is in order whose value is not above this, or -1.
function lastUpTo(values, value) {
  let [low, high] = [0, values.length];
  while (low < high) {
    const middle = (low + high) >>> 1;
    if (values[middle] <= value) low = middle + 1;
    else high = middle;
  }
  return low - 1;
}

// A place in a program as `file:line`, or nothing.
function placeText({ file, line, name }) {
  if (file === "") return name;
  return line > 0 ? `${file}:${line}` : file;
}

// The call site of a stack.
function siteText(report, stack) {
  return stack === NONE ? "" : placeText(report.names.frames[report.names.stacks[stack].site]);
}
