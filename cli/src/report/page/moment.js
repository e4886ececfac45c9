// The slider over the history, and what happened just before the moment that it is at.

function setUpMoment() {
  const slider = element("input", {
    type: "range",
    id: "slider",
    min: 0,
    step: 1,
    "aria-label": "Moment of the history",
  });
  const said = element("p", { class: "said", id: "moment-said" });
  const go = (to) => change({ moment: Math.max(0, Math.min(view.device.last, to())) });
  const jump = (text, label, to) => button(text, { "aria-label": label, title: label }, () => go(to));
  const stepButton = (text, label, by) => {
    const made = jump(text, label, () => stepEnd(view.device, view.moment, by));
    made.dataset.step = by;
    return made;
  };
  const buttons = [
    jump("Start", "To the beginning of the history", () => 0),
    jump("◀", "One event back", () => view.moment - 1),
    jump("▶", "One event on", () => view.moment + 1),
    jump("End", "To the snapshot", () => view.device.last),
    stepButton("◀ Step", "To the end of the step before", -1),
    stepButton("Step ▶", "To the end of this step", 1),
    jump("Peak", "To the moment with most memory in use", () => view.device.peak),
  ];
  watch(["device"], () => {
    for (const control of buttons) control.hidden = control.dataset.step !== undefined && !view.device.hasSteps;
  });
  slider.addEventListener("input", () => change({ moment: slider.valueAsNumber }));
  byId("moment").append(element("div", { class: "bar" }, [...buttons, slider]), said);
  watch(["device", "moment"], () => {
    const { device, moment } = view;
    slider.max = device.last;
    slider.value = moment;
    const isFixed = device.last === 0;
    for (const control of [slider, ...buttons]) control.disabled = isFixed;
    const { place, figures, happened } = describeMoment(device, moment);
    said.replaceChildren(
      element("strong", {}, place),
      ` ${figures}`,
      element("span", { class: "quiet" }, ` ${happened}`),
    );
    slider.setAttribute("aria-valuetext", `${place} ${figures}`);
  });
}

// The moment after the last event of this step, or of the one before.
function stepEnd(device, moment, by) {
  const { step } = device.events;
  if (by < 0) {
    let at = Math.max(0, moment - 1);
    while (at > 0 && step[at - 1] === step[at]) at -= 1;
    return at;
  }
  let at = Math.min(device.last, moment + 1);
  while (at < device.last && step[at] === step[at - 1]) at += 1;
  return at;
}

function describeMoment(device, moment) {
  const reserved = device.figures.reserved[moment];
  const figures = `${formatBytes(device.occupied[moment])} of ${formatBytes(reserved)} in use.`;
  if (device.last === 0) {
    return { place: "The snapshot.", figures, happened: "It has no history, so there is nothing to go back to." };
  }
  const where = `Moment ${formatCount(moment)} of ${formatCount(device.last)}`;
  const before = device.times[device.last] - device.times[moment];
  const when = moment === device.last ? "the snapshot" : `${formatDuration(before)} before the end`;
  const step = moment > 0 && device.hasSteps ? `, step ${formatCount(device.events.step[moment - 1])}` : "";
  return {
    place: `${where}${step}, ${when}.`,
    figures,
    happened: moment > 0 ? describeEvent(device, moment - 1) : "The history begins here.",
  };
}

const EVENT_NAMES = [
  "allocated",
  "freed",
  "free of all uses",
  "no memory for",
  "mapped",
  "unmapped",
  "mapped",
  "unmapped",
];

function describeEvent(device, event) {
  const { kind, block, bytes, label, thread } = device.events;
  const { labels, threads } = view.report.names;
  // A free is made wherever the block ends; what matters is whose the block was.
  const isFree = kind[event] === KIND.freeRequested || kind[event] === KIND.freeCompleted;
  const known = isFree && block[event] !== NONE ? device.blocks : null;
  const name = labels[known ? known.label[block[event]] : label[event]];
  const site = siteText(view.report, known ? known.stack[block[event]] : device.events.stack[event]);
  const by = [name, site, threads[thread[event]] && `thread ${threads[thread[event]]}`].filter(Boolean).join(", ");
  return `Last event: ${formatBytes(bytes[event])} ${EVENT_NAMES[kind[event]]}${by ? ` (${by})` : ""}.`.replace(
    /^Last event: (.*) no memory for/,
    "Last event: no memory for $1",
  );
}
