"use strict";
// The list of models: shows the rows that contain the words typed and have the verdict chosen.
(() => {
  const words = document.getElementById("filter-words");
  const verdict = document.getElementById("filter-verdict");
  const shown = document.getElementById("filter-shown");
  const rows = [...document.querySelectorAll("#models-table tbody tr")];
  const texts = rows.map((row) => row.textContent.toLowerCase());
  const update = () => {
    const wanted = words.value.toLowerCase().split(/\s+/).filter(Boolean);
    let count = 0;
    rows.forEach((row, index) => {
      const fits = wanted.every((word) => texts[index].includes(word))
        && (!verdict.value || row.dataset.verdict === verdict.value);
      row.hidden = !fits;
      count += fits;
    });
    shown.textContent = `${count} shown`;
  };
  words.addEventListener("input", update);
  verdict.addEventListener("change", update);
  document.querySelector(".filter").hidden = false;
  update();
})();
