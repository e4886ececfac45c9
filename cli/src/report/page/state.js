// What lies where at one moment.
//
// A block is there from its first moment until before its last, so a moment needs no replay but one look at each block. They are
// in order of address, and so is what is found.

// A free range in which no such page lies whole can neither be given back nor moved: it serves only smaller requests.
const PAGE_BYTES = 2 * 1024 * 1024;

const PART = { live: 0, pending: 1, kept: 2, free: 3, small: 4 };
const PART_NAMES = [
  "live",
  "freed, still in use by queued work",
  "kept for a planned step or a buffer",
  "free",
  "free, but less than a page between blocks",
];

let lastState = { device: null, moment: -1 };

// `blocks` and `kept` are numbers of blocks in order of address, `segments` those that are mapped, by owner and address.
function stateAt(device, moment) {
  if (lastState.device === device && lastState.moment === moment) return lastState;
  const { begin, end, flags } = device.blocks;
  const blocks = [];
  const kept = [];
  for (let block = 0; block < begin.length; block += 1) {
    if (begin[block] <= moment && moment < end[block]) {
      (flags[block] & IS_KEPT ? kept : blocks).push(block);
    }
  }
  lastState = { device, moment, blocks, kept, segments: segmentsAt(device, moment) };
  return lastState;
}

// Pieces that touch and belong together are one segment.
function segmentsAt(device, moment) {
  const { address, bytes, begin, end, owner, segment } = device.pieces;
  const segments = [];
  let last = null;
  for (let piece = 0; piece < address.length; piece += 1) {
    if (begin[piece] > moment || moment >= end[piece]) continue;
    const start = address[piece];
    const stop = start + bytes[piece];
    const goesOn =
      last !== null && last.end === start && last.owner === owner[piece] && last.segment === segment[piece];
    if (goesOn) {
      last.end = stop;
    } else {
      last = { start, end: stop, owner: owner[piece], segment: segment[piece] };
      segments.push(last);
    }
  }
  return segments;
}

function firstFrom(device, blocks, start) {
  const { address } = device.blocks;
  let [low, high] = [0, blocks.length];
  while (low < high) {
    const middle = (low + high) >>> 1;
    if (address[blocks[middle]] < start) low = middle + 1;
    else high = middle;
  }
  return low;
}

function kindOf(device, block, moment) {
  if (device.blocks.flags[block] & IS_KEPT) return PART.kept;
  return device.blocks.freed[block] <= moment ? PART.pending : PART.live;
}

// Calls `visit(kind, start, end, block)` for all parts of a segment in order of address; free ones have no block, and -1.
function visitParts(state, segment, visit) {
  const { device, moment, blocks, kept } = state;
  const { address, bytes } = device.blocks;
  const gap = (start, end) => {
    const hasPage = Math.floor(end / PAGE_BYTES) > Math.ceil(start / PAGE_BYTES);
    const isWhole = start === segment.start && end === segment.end;
    visit(hasPage || isWhole ? PART.free : PART.small, start, end, -1);
  };
  let at = firstFrom(device, blocks, segment.start);
  // What is kept may begin before a block that lies in it, and go on behind it.
  let keptAt = firstFrom(device, kept, segment.start);
  let place = segment.start;
  const fill = (end) => {
    while (place < end) {
      const one = kept[keptAt];
      const keptStart = one === undefined ? Infinity : address[one];
      const keptEnd = one === undefined ? Infinity : keptStart + bytes[one];
      if (keptEnd <= place) {
        keptAt += 1;
      } else if (keptStart > place) {
        const stop = Math.min(end, keptStart);
        gap(place, stop);
        place = stop;
      } else {
        const stop = Math.min(end, keptEnd);
        visit(PART.kept, place, stop, one);
        place = stop;
      }
    }
  };
  for (; at < blocks.length && address[blocks[at]] < segment.end; at += 1) {
    const block = blocks[at];
    fill(address[block]);
    const end = address[block] + bytes[block];
    visit(kindOf(device, block, moment), address[block], end, block);
    place = Math.max(place, end);
  }
  fill(segment.end);
}

// Bytes by kind of part, the largest free range and the number of blocks, of those segments that are asked for.
function totalsOf(state, segments) {
  const totals = {
    bytes: [0, 0, 0, 0, 0],
    requested: 0,
    reserved: 0,
    blocks: 0,
    largestFree: 0,
    segments: segments.length,
  };
  for (const segment of segments) {
    totals.reserved += segment.end - segment.start;
    visitParts(state, segment, (kind, start, end, block) => {
      totals.bytes[kind] += end - start;
      if (block < 0) totals.largestFree = Math.max(totals.largestFree, end - start);
      else if (kind !== PART.kept) {
        totals.blocks += 1;
        totals.requested += state.device.blocks.requested[block];
      }
    });
  }
  totals.free = totals.bytes[PART.free] + totals.bytes[PART.small];
  return totals;
}

function isThere(state, block) {
  const { begin, end } = state.device.blocks;
  return block >= 0 && begin[block] <= state.moment && state.moment < end[block];
}
