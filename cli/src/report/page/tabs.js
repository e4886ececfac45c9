// The tabs: arrows go from one to the next, as the pattern for tabs has it.

function setUpTabs() {
  const list = byId("tabs");
  const panels = [...document.querySelectorAll("[role=tabpanel]")];
  const tabs = panels.map((panel) => {
    const name = panel.id.replace("panel-", "");
    const tab = button(panel.dataset.name, { role: "tab", id: `tab-${name}`, "aria-controls": panel.id }, () =>
      change({ tab: name }),
    );
    tab.dataset.tab = name;
    return tab;
  });
  list.append(...tabs);
  list.addEventListener("keydown", (event) => {
    const at = tabs.findIndex((tab) => tab.dataset.tab === view.tab);
    const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: tabs.length - 1 }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    const tab = tabs[(to + tabs.length) % tabs.length];
    change({ tab: tab.dataset.tab });
    tab.focus();
  });
  watch(["tab"], () => {
    tabs.forEach((tab, index) => {
      const isShown = tab.dataset.tab === view.tab;
      tab.setAttribute("aria-selected", String(isShown));
      tab.tabIndex = isShown ? 0 : -1;
      panels[index].hidden = !isShown;
    });
  });
}
