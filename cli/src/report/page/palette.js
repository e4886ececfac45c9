// Colours and patterns of groups. Each colour has a pattern of its own, so that nothing is told by colour alone.

// Okabe and Ito's, which can be told apart with any colour vision; with white or black on them, whichever reads better.
const COLOURS = [
  { fill: "#56b4e9", text: "#000" },
  { fill: "#e69f00", text: "#000" },
  { fill: "#009e73", text: "#000" },
  { fill: "#cc79a7", text: "#000" },
  { fill: "#f0e442", text: "#000" },
  { fill: "#0072b2", text: "#fff" },
  { fill: "#d55e00", text: "#000" },
  { fill: "#8f7fd1", text: "#000" },
];
const OTHER_COLOUR = { fill: "#9a9a9a", text: "#000" };
const KEPT_COLOUR = { fill: "#c9c4b4", text: "#000" };

// How each is drawn on a square of this many pixels: lines as a path, or dots as a path that is filled.
const TILE = 12;
const PATTERNS = [
  {},
  { lines: "M0 12L12 0M-6 6L6 -6M6 18L18 6" },
  {
    dots: dotsPath(
      [
        [3, 3],
        [9, 9],
      ],
      1.4,
    ),
  },
  { lines: "M0 0L12 12M-6 6L6 18M6 -6L18 6" },
  { lines: "M0 3H12M0 9H12" },
  { lines: "M3 0V12M9 0V12" },
  { lines: "M0 6H12M6 0V12" },
  { dots: dotsPath([[6, 6]], 2.4) },
];
const OTHER_PATTERN = {
  dots: dotsPath(
    [
      [2, 2],
      [8, 2],
      [5, 8],
      [11, 8],
    ],
    0.8,
  ),
};
const KEPT_PATTERN = { lines: "M0 12L12 0M0 0L12 12" };

function dotsPath(places, radius) {
  const around = `a${radius} ${radius} 0 1 0 ${2 * radius} 0a${radius} ${radius} 0 1 0 ${-2 * radius} 0`;
  return places.map(([x, y]) => `M${x - radius} ${y}${around}`).join("");
}

// What a band is painted with: `fill` and `text` are colours, `pattern` is for canvases, `id` names the same for pictures.
function makePaint(id, colour, { lines = "", dots = "" }) {
  const ink = colour.text === "#fff" ? "rgb(255 255 255 / 45%)" : "rgb(0 0 0 / 35%)";
  const pen = element("canvas", { width: TILE, height: TILE }).getContext("2d");
  pen.fillStyle = colour.fill;
  pen.fillRect(0, 0, TILE, TILE);
  pen.strokeStyle = ink;
  pen.fillStyle = ink;
  pen.stroke(new Path2D(lines));
  pen.fill(new Path2D(dots));
  const picture = svg("pattern", { id, width: TILE, height: TILE, patternUnits: "userSpaceOnUse" }, [
    svg("rect", { width: TILE, height: TILE, fill: colour.fill }),
    svg("path", { d: lines, stroke: ink, fill: "none" }),
    svg("path", { d: dots, fill: ink }),
  ]);
  return { ...colour, id, pattern: pen.createPattern(pen.canvas, "repeat"), picture };
}

const PAINTS = COLOURS.map((colour, index) => makePaint(`paint-${index}`, colour, PATTERNS[index]));
const OTHER_PAINT = makePaint("paint-other", OTHER_COLOUR, OTHER_PATTERN);
const KEPT_PAINT = makePaint("paint-kept", KEPT_COLOUR, KEPT_PATTERN);

document.body.append(
  svg(
    "svg",
    { class: "paints", "aria-hidden": "true" },
    [...PAINTS, OTHER_PAINT, KEPT_PAINT].map(({ picture }) => picture),
  ),
);

// A small picture of a paint, beside its name.
function swatch({ id }) {
  return svg("svg", { class: "swatch", width: 22, height: 14, "aria-hidden": "true" }, [
    svg("rect", { width: 22, height: 14, fill: `url(#${id})` }),
  ]);
}
