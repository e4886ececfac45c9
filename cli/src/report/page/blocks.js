// The blocks that are there at the chosen moment, one by one and by what they have in common.

function setUpBlocks(panel) {
  const search = element("input", {
    type: "search",
    id: "search",
    placeholder: "label, file, thread, pool, address",
    autocomplete: "off",
    spellcheck: "false",
  });
  const found = element("p", { class: "said", role: "status", id: "found" });
  const groupTable = makeGroupTable();
  const blockTable = makeBlockTable();
  panel.append(
    element("div", { class: "tools" }, [
      element("label", {}, ["Search ", search]),
      button("Largest first", {}, () => blockTable.sortBy("Size", true)),
      button("Oldest first", {}, () => blockTable.sortBy("Age", true)),
    ]),
    found,
    groupTable.element,
    blockTable.element,
  );
  const show = () => {
    const groups = groupsNow();
    const inAll = searched(stateNow().blocks, search.value);
    const blocks = view.group < 0 ? inAll : inAll.filter((block) => groups.groupOf[block] === view.group);
    const bytes = blocks.reduce((sum, block) => sum + view.device.blocks.bytes[block], 0);
    const which = search.value.trim() === "" ? "at this moment" : "found";
    found.textContent = `${formatCounted(blocks.length, "block")} of ${formatBytes(bytes)} ${which}`;
    if (view.group >= 0) found.textContent += `, of ${groups.groups[view.group].name} alone`;
    groupTable.show(groupRows(inAll));
    blockTable.show(blocks);
  };
  search.addEventListener("input", show);
  watch(["device", "grouping", "group", "tab"], show, "blocks");
  // Rows take longer to make than the slider to move, so they follow when it rests.
  let pending = 0;
  watch(
    ["moment"],
    () => {
      clearTimeout(pending);
      pending = setTimeout(show, 60);
    },
    "blocks",
  );
  watch(["selected"], () => blockTable.refresh(), "blocks");
}

// Blocks that have each word somewhere. What words are in is found once for each name, and not for each block.
function searched(blocks, text) {
  const words = text
    .toLowerCase()
    .split(/\s+/)
    .filter((word) => word !== "");
  if (words.length === 0) return blocks;
  const { names } = view.report;
  const stackTexts = names.stacks.map(({ frames }) =>
    frames.map((frame) => `${names.frames[frame].name} ${placeText(names.frames[frame])}`).join(" "),
  );
  const owners = names.owners.map((_, owner) => ownerText(owner));
  const { label, stack, thread, owner, address } = view.device.blocks;
  const tests = words.map((word) => {
    const has = (texts) => texts.map((one) => one.toLowerCase().includes(word));
    return {
      word,
      labels: has(names.labels),
      stacks: has(stackTexts),
      threads: has(names.threads),
      owners: has(owners),
      isHex: /^(0x)?[0-9a-f]+$/.test(word),
    };
  });
  return blocks.filter((block) =>
    tests.every(
      ({ word, labels, stacks, threads, owners, isHex }) =>
        labels[label[block]] ||
        stacks[stack[block]] ||
        threads[thread[block]] ||
        owners[owner[block]] ||
        (isHex && formatAddress(address[block]).includes(word)),
    ),
  );
}

function groupRows(blocks) {
  const groups = groupsNow();
  const { device, moment } = view;
  const rows = new Map();
  let total = 0;
  for (const block of blocks) {
    const group = groups.groupOf[block];
    if (!rows.has(group))
      rows.set(group, { ...groups.groups[group], group, block, count: 0, bytes: 0, largest: 0, oldest: -1 });
    const row = rows.get(group);
    const bytes = device.blocks.bytes[block];
    row.count += 1;
    row.bytes += bytes;
    row.largest = Math.max(row.largest, bytes);
    row.oldest = Math.max(row.oldest, ageOf(device, block, moment) ?? -1);
    total += bytes;
  }
  const listed = [...rows.values()];
  listed.forEach((row) => {
    row.share = row.bytes / total;
  });
  return listed;
}

function ageText(age) {
  return age < 0 ? "–" : formatDuration(age);
}

// Pressing a group lists its blocks alone, and pressing it again all.
function makeGroupTable() {
  const pick = ({ group }) => change({ group: view.group === group ? -1 : group });
  return makeTable(
    "By group",
    [
      {
        name: "Group",
        isText: true,
        sort: (row) => row.name.toLowerCase(),
        cell: (row) =>
          button(
            [swatch(paintOf(groupsNow(), row.block)), ` ${row.name}`],
            { class: "link", title: "List its blocks alone", "aria-pressed": String(view.group === row.group) },
            () => pick(row),
          ),
      },
      { name: "Blocks", sort: (row) => row.count, cell: (row) => formatCount(row.count) },
      { name: "Total", sort: (row) => row.bytes, cell: (row) => formatBytes(row.bytes) },
      { name: "Share", sort: (row) => row.bytes, cell: (row) => formatShare(row.share) },
      { name: "Peak", sort: (row) => row.peak, cell: (row) => formatBytes(row.peak) },
      { name: "Largest", sort: (row) => row.largest, cell: (row) => formatBytes(row.largest) },
      { name: "Oldest", sort: (row) => row.oldest, cell: (row) => ageText(row.oldest) },
    ],
    { column: "Total", isDown: true },
    12,
    ({ group }) => (group === view.group ? { "aria-current": "true" } : {}),
  );
}

function makeBlockTable() {
  const of = (name) => (block) => view.device.blocks[name][block];
  const known = (text) => (block) => (isKnown(view.device, block) ? text(block) : "");
  const label = known((block) => view.report.names.labels[of("label")(block)]);
  const site = known((block) => siteText(view.report, of("stack")(block)));
  const thread = known((block) => view.report.names.threads[of("thread")(block)]);
  const step = known((block) =>
    of("step")(block) === NONE || !view.device.hasSteps ? "" : formatCount(of("step")(block)),
  );
  const owner = (block) => ownerText(of("owner")(block));
  const { labels, threads, stacks } = view.report.names;
  const hasSteps = view.report.devices.some((device) => device.hasSteps);
  const text = (name, value) => ({ name, isText: true, sort: (block) => value(block).toLowerCase(), cell: value });
  return makeTable(
    "Blocks",
    [
      {
        name: "Address",
        isText: true,
        sort: of("address"),
        cell: (block) =>
          button(
            [swatch(paintOf(groupsNow(), block)), ` ${formatAddress(of("address")(block))}`],
            { class: "link" },
            () => change({ selected: block }),
          ),
      },
      { name: "Size", sort: of("bytes"), cell: (block) => formatBytes(of("bytes")(block)) },
      labels.length > 1 && text("Label", label),
      stacks.length > 0 && text("Call site", site),
      threads.length > 1 && text("Thread", thread),
      hasSteps && { name: "Step", sort: (block) => (isKnown(view.device, block) ? of("step")(block) : -1), cell: step },
      text("Pool", owner),
      {
        name: "Age",
        sort: (block) => (isKnown(view.device, block) ? (ageOf(view.device, block, view.moment) ?? -1) : Infinity),
        cell: (block) =>
          isKnown(view.device, block) ? ageText(ageOf(view.device, block, view.moment) ?? -1) : "older",
      },
    ].filter(Boolean),
    { column: "Size", isDown: true },
    50,
    (block) => (block === view.selected ? { "aria-current": "true" } : {}),
  );
}
