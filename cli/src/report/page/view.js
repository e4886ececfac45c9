// What the reader looks at, and who draws it.
//
// Whatever changes goes through `change`; everything that shows it is called once before the next picture, with the names of what
// changed.

const view = {
  report: null,
  device: null,
  grouping: "label",
  // A number of events that have happened.
  moment: 0,
  tab: "time",
  // The block whose details are shown, or -1.
  selected: -1,
  // The band that stands out, or -1.
  highlight: -1,
  // The group that the list of blocks is about, by its place among the groups, or -1 for all.
  group: -1,
  // What charts show of their axis.
  axis: "time",
  window: null,
};

const watchers = [];
let changed = new Set();

// `names` are what has to change for `draw` to be called; with `tab`, only while that tab is shown, and when it is next shown.
function watch(names, draw, tab = null) {
  watchers.push({ names, draw, tab, isStale: true });
}

function change(values) {
  for (const [name, value] of Object.entries(values)) {
    if (view[name] === value) continue;
    view[name] = value;
    changed.add(name);
  }
  if (changed.size > 0) schedule();
}

let isScheduled = false;

function schedule() {
  if (isScheduled) return;
  isScheduled = true;
  requestAnimationFrame(() => {
    isScheduled = false;
    drawChanged();
  });
}

function drawChanged() {
  const names = changed;
  changed = new Set();
  for (const watcher of watchers) {
    watcher.isStale ||= watcher.names.some((name) => names.has(name));
    if (watcher.isStale && (watcher.tab === null || watcher.tab === view.tab)) {
      watcher.isStale = false;
      watcher.draw();
    }
  }
}

// Draws everything again, for another theme or another size.
function drawAll() {
  for (const watcher of watchers) watcher.isStale = true;
  schedule();
}

function groupsNow() {
  return groupsOf(view.report, view.device, view.grouping);
}

function stateNow() {
  return stateAt(view.device, view.moment);
}

function bandOf(groups, block) {
  const group = groups.groupOf[block];
  return group < 0 ? groups.keptBand : groups.groups[group].band;
}

function paintOf(groups, block) {
  return groups.bands[bandOf(groups, block)].paint;
}

function groupName(groups, block) {
  const group = groups.groupOf[block];
  return group < 0 ? "kept for steps and buffers" : groups.groups[group].name;
}

function ownerText(owner) {
  const of = view.report.names.owners[owner];
  if (of === undefined) return "unknown pool";
  const pool = of.pool.startsWith("pool ") ? of.pool : `pool ${of.pool}`;
  return of.stream === "0" ? pool : `${pool}, stream ${of.stream}`;
}
