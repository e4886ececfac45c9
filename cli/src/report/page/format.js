// Numbers as people read them.

const UNITS = ["KiB", "MiB", "GiB", "TiB", "PiB"];

function formatBytes(bytes) {
  if (bytes < 1024) return `${Math.round(bytes)} B`;
  let value = bytes / 1024;
  let unit = 0;
  while (value >= 1023.5 && unit < UNITS.length - 1) {
    value /= 1024;
    unit += 1;
  }
  // Three digits that count, and no more decimals than there are.
  const digits = value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2;
  return `${Number(value.toFixed(digits))} ${UNITS[unit]}`;
}

function formatCount(count) {
  return count.toLocaleString("en");
}

// "1 block", "2 blocks".
function formatCounted(count, noun) {
  return `${formatCount(count)} ${noun}${count === 1 ? "" : "s"}`;
}

function formatShare(share) {
  if (!Number.isFinite(share)) return "–";
  const percent = 100 * share;
  return `${percent > 0 && percent < 9.95 ? percent.toFixed(1) : Math.round(percent)}%`;
}

function formatAddress(address) {
  return `0x${address.toString(16)}`;
}

const DURATIONS = [
  [86_400e6, "d"],
  [3_600e6, "h"],
  [60e6, "min"],
  [1e6, "s"],
  [1e3, "ms"],
];

// Of microseconds.
function formatDuration(us) {
  for (const [length, unit] of DURATIONS) {
    if (us >= length) return `${Number((us / length).toPrecision(3))} ${unit}`;
  }
  return `${Math.round(us)} µs`;
}

// Of microseconds since 1970, in the reader's own time zone.
function formatDate(us) {
  return new Date(us / 1000).toLocaleString(undefined, { dateStyle: "medium", timeStyle: "medium" });
}
