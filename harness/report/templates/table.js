(() => {
  "use strict";

  // A cell's figure is in data-v; a cell of text has none and is compared as it reads.
  const valueOf = (row, column) => {
    const cell = row.cells[column];
    const figure = cell.dataset.v;
    return figure === undefined ? cell.textContent.trim() : Number(figure);
  };
  const isUnknown = (value) => value === "" || value === "—";

  const compare = (left, right) => {
    if (isUnknown(left) || isUnknown(right)) return isUnknown(left) - isUnknown(right);
    if (typeof left === "number" && typeof right === "number") return left - right;
    return String(left).localeCompare(String(right), "en", { numeric: true });
  };

  const make = (name, attributes, ...children) => {
    const element = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    element.append(...children);
    return element;
  };

  const enhance = (table) => {
    const body = table.tBodies[0];
    const rows = [...body.rows];
    const texts = new Map(rows.map((row) => [row, row.textContent.toLowerCase()]));
    const heads = [...table.tHead.rows[0].cells];
    const field = make("input", { type: "search", autocomplete: "off", spellcheck: "false" });
    const told = make("p", { role: "status" });
    let order = "";

    const tell = () => {
      const shown = rows.filter((row) => !row.hidden).length;
      told.textContent = `${shown} of ${rows.length} rows shown${order}`;
    };

    const sort = (column, name) => {
      const head = heads[column];
      const falls = head.getAttribute("aria-sort") === "ascending";
      for (const other of heads) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", falls ? "descending" : "ascending");
      const sorted = [...rows].sort((one, other) => {
        const [left, right] = [valueOf(one, column), valueOf(other, column)];
        // What is unknown comes last either way.
        const turned = falls && !isUnknown(left) && !isUnknown(right);
        return turned ? compare(right, left) : compare(left, right);
      });
      body.append(...sorted);
      order = `, sorted by ${name}, ${falls ? "highest" : "lowest"} first`;
      tell();
    };

    heads.forEach((head, column) => {
      const name = head.textContent.trim();
      const button = make("button", { type: "button" }, name);
      button.addEventListener("click", () => sort(column, name));
      head.replaceChildren(button);
    });

    field.addEventListener("input", () => {
      const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
      for (const row of rows) row.hidden = !words.every((word) => texts.get(row).includes(word));
      tell();
    });

    const label = make("label", {}, "Show rows that contain ", field);
    table.parentElement.before(make("div", { class: "filter" }, label, told));
  };

  document.querySelectorAll("table.sortable").forEach(enhance);

  // A link to folded evidence unfolds it.
  const unfold = () => {
    const aim = document.getElementById(location.hash.slice(1));
    const folded = aim?.closest("details");
    if (folded) folded.open = true;
  };
  addEventListener("hashchange", unfold);
  unfold();
})();
