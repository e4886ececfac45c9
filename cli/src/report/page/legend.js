// The bands of a chart or a map by name, with what they have at the moment: what the picture says, as text. Pressing one makes it
// stand out.

function setUpLegend(parent, tab) {
  const list = element("ul", { class: "legend", "aria-label": "Groups" });
  parent.append(list);
  let entries = [];
  let shown = null;
  watch(
    ["device", "grouping", "highlight", "moment"],
    () => {
      const groups = groupsNow();
      if (shown !== groups) {
        shown = groups;
        entries = groups.bands.map((band, index) => {
          const value = element("span", { class: "value" });
          const entry = button(
            [swatch(band.paint), element("span", { class: "name" }, band.name), value],
            { title: `peak ${formatBytes(band.peak)}` },
            () => change({ highlight: view.highlight === index ? -1 : index }),
          );
          return { entry, value };
        });
        list.replaceChildren(...entries.map(({ entry }) => element("li", {}, entry)));
      }
      const count = groups.bands.length;
      entries.forEach(({ entry, value }, index) => {
        value.textContent = formatBytes(groups.series[view.moment * count + index]);
        entry.setAttribute("aria-pressed", String(view.highlight === index));
      });
    },
    tab,
  );
}
