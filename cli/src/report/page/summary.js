// What stands out: findings, and the figures of the snapshot in plain words.

const SEVERITIES = {
  problem: { sign: "✖", name: "Problem" },
  warning: { sign: "▲", name: "Warning" },
  note: { sign: "●", name: "Note" },
};

function setUpSummary() {
  const findings = view.report.findings.map(({ severity, text, advice }) =>
    element("li", { class: `finding ${severity}` }, [
      element("span", { class: "sign", "aria-hidden": "true" }, SEVERITIES[severity].sign),
      element("div", {}, [
        element("p", {}, [element("strong", {}, `${SEVERITIES[severity].name}: `), text]),
        ...(advice === "" ? [] : [element("p", { class: "advice" }, advice)]),
      ]),
    ]),
  );
  const tiles = element("dl", { class: "tiles" });
  const sentence = element("p", { class: "sentence" });
  const notes = element("div");
  byId("summary").append(
    ...(findings.length > 0 ? [element("ul", { class: "findings" }, findings)] : []),
    sentence,
    tiles,
    notes,
  );
  watch(["device"], () => {
    const { device } = view;
    const state = stateAt(device, device.last);
    const totals = totalsOf(state, state.segments);
    sentence.textContent = describeTotals(totals);
    tiles.replaceChildren(
      ...figureTiles(device, totals).map(([name, value, about]) =>
        element("div", { title: about }, [element("dt", {}, name), element("dd", {}, value)]),
      ),
    );
    notes.replaceChildren(...noteTexts(device).map((text) => element("p", { class: "quiet" }, text)));
  });
}

function describeTotals({ bytes, reserved, free, blocks, largestFree, segments }) {
  if (reserved === 0) return "No memory is reserved.";
  const small = bytes[PART.small];
  const parts = [
    `When the snapshot was taken, ${formatBytes(reserved - free)} of ${formatBytes(reserved)} reserved were in use, in ${formatCounted(blocks, "block")} and ${formatCounted(segments, "segment")}.`,
    free === 0
      ? "Nothing was free."
      : `${formatBytes(free)} (${formatShare(free / reserved)}) were free, and the largest free range was ${formatBytes(largestFree)}.`,
  ];
  if (small > 0)
    parts.push(
      `${formatBytes(small)} of what was free lay in gaps of less than a page of ${formatBytes(PAGE_BYTES)} between blocks, where only smaller requests fit.`,
    );
  return parts.join(" ");
}

function figureTiles(device, { bytes, reserved, free, largestFree, requested }) {
  const held = reserved - free;
  return [
    ["Reserved", formatBytes(reserved), "mapped memory"],
    ["In use", formatBytes(held), "blocks that somebody has, that queued work still uses, or that are kept"],
    ["Asked for", formatBytes(requested), "what programs asked for in blocks that somebody has"],
    ["Peak in use", formatBytes(device.occupied[device.peak]), "the most in the history that is kept"],
    [
      "Free",
      `${formatBytes(free)} (${formatShare(free / reserved)})`,
      "reserved, and in no block: 1 - in use / reserved",
    ],
    ["Largest free", formatBytes(largestFree), "the largest request that needs no more memory"],
    ["Scattered", formatShare(free > 0 ? 1 - largestFree / free : 0), "1 - largest free / free"],
    ["In small gaps", formatBytes(bytes[PART.small]), "free between blocks, in gaps without a whole page"],
  ];
}

function noteTexts(device) {
  const { droppedEntries } = view.report;
  const notes = [];
  if (device.last === 0)
    notes.push(
      "The snapshot has no history. With `record_history` the next one shows memory over time, and who allocated each block.",
    );
  if (droppedEntries > 0)
    notes.push(
      `The history has the last ${formatCounted(device.last, "event")} of this device. No longer kept, of all devices: ${formatCounted(droppedEntries, "earlier event")}.`,
    );
  if (device.last > 0 && !device.tellsReserved)
    notes.push(
      "The history does not tell when memory was mapped: what is reserved is taken to have been so all along.",
    );
  if (device.contradictions > 0)
    notes.push(`${formatCounted(device.contradictions, "event")} that contradict others are left out.`);
  return notes;
}
