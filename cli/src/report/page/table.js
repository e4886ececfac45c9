// A table with columns that sort, which shows as many rows as can be read.

// Columns have a `name` of their own, `sort(row)` (a number or text) and `cell(row)` (text or an element); `isText` ones are
// sorted upwards first. `rowsAtOnce` are shown, and as many more whenever more are asked for; `rowAttributes(row)` may say which row is selected.
function makeTable(caption, columns, sortedBy, rowsAtOnce, rowAttributes = () => ({})) {
  let rows = [];
  let limit = rowsAtOnce;
  const order = { ...sortedBy };
  const body = element("tbody");
  const count = element("p", { class: "quiet", role: "status" });
  const more = button("Show more", {}, () => {
    limit += rowsAtOnce;
    fill();
  });
  const heads = columns.map(({ name, isText }) =>
    element("th", { scope: "col", class: isText ? "text" : "number" }, [
      button([name, element("span", { class: "arrow", "aria-hidden": "true" })], { class: "sort" }, () => {
        sortBy(name, order.column === name ? !order.isDown : !isText);
      }),
    ]),
  );
  const table = element("table", {}, [
    element("caption", {}, caption),
    element("thead", {}, element("tr", {}, heads)),
    body,
  ]);
  const fill = () => {
    const shown = rows.slice(0, limit);
    // Whoever presses something in a row goes on from there.
    const focused = [...body.rows].findIndex((row) => row.contains(document.activeElement));
    body.replaceChildren(
      ...shown.map((row) =>
        element(
          "tr",
          rowAttributes(row),
          columns.map((column, index) =>
            element(
              index === 0 ? "th" : "td",
              { class: column.isText ? "text" : "number", ...(index === 0 ? { scope: "row" } : {}) },
              column.cell(row),
            ),
          ),
        ),
      ),
    );
    body.rows[focused]?.querySelector("button")?.focus();
    more.hidden = rows.length <= limit;
    count.textContent =
      rows.length > limit
        ? `The first ${formatCount(limit)} of ${formatCount(rows.length)} are shown.`
        : formatCounted(rows.length, "row");
  };
  const sort = () => {
    const key = columns.find(({ name }) => name === order.column).sort;
    const keyed = rows.map((row) => [key(row), row]);
    const sign = order.isDown ? -1 : 1;
    keyed.sort(([one], [other]) => (one < other ? -sign : one > other ? sign : 0));
    rows = keyed.map(([, row]) => row);
    heads.forEach((head, index) => {
      const isIt = columns[index].name === order.column;
      head.setAttribute("aria-sort", !isIt ? "none" : order.isDown ? "descending" : "ascending");
      head.querySelector(".arrow").textContent = !isIt ? "" : order.isDown ? " ▼" : " ▲";
    });
  };
  const sortBy = (column, isDown) => {
    Object.assign(order, { column, isDown });
    sort();
    fill();
  };
  return {
    element: element("div", { class: "table" }, [
      element("div", { class: "scroll", tabindex: 0, role: "group", "aria-label": caption }, table),
      count,
      more,
    ]),
    sortBy,
    show(newRows) {
      rows = newRows;
      limit = rowsAtOnce;
      sort();
      fill();
    },
    refresh: fill,
  };
}
