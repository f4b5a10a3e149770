// The environment and the agent's window: cells that are drawn here, or frames that were recorded.

const INK = "#10121a";
const SIDE = 24; // pixels of a cell before the canvas is scaled

/** Each draws into a cell of side 1 with its middle at 0, turned so that ahead is to the right. */
const SHAPES = {
  empty() {},
  unseen: (c) => block(c, "#05060d"),
  fill: (c, colour) => block(c, colour, 0.02),
  wall: (c) => (block(c, "#343a54"), block(c, "#4a5274", 0.06)),
  food: (c) => disc(c, 0, 0, 0.09, "#ffcea0"),
  pill: (c) => disc(c, 0, 0, 0.27, "#fff0d6"),
  pacman(c) {
    c.fillStyle = "#ffd828";
    c.beginPath();
    c.moveTo(-0.06, 0);
    c.arc(0, 0, 0.44, 0.62, 2 * Math.PI - 0.62);
    c.fill();
  },
  ghost: (c, colour, turn) => (ghostBody(c, colour), eyes(c, 0.14, 0.07, turn)),
  scared: (c) => (ghostBody(c, "#2c4cf0"), ghostMouth(c, "#ffe2c8")),
  recovering: (c) => (ghostBody(c, "#ecf0ff"), ghostMouth(c, "#e0323c")),
  arrow: (c, colour) => polygon(c, colour, [[0.4, 0], [-0.34, 0.32], [-0.34, -0.32]]),
  ball: (c, colour) => disc(c, 0, 0, 0.32, colour),
  key: drawKey,
  box: (c, colour) => (c.strokeStyle = colour, c.lineWidth = 0.1, c.strokeRect(-0.32, -0.32, 0.64, 0.64), block(c, colour, 0.44)),
  goal: (c, colour) => block(c, colour, 0.04),
  lava: (c, colour) => block(c, colour),
  door: (c, colour) => (c.strokeStyle = colour, c.lineWidth = 0.1, c.strokeRect(-0.42, -0.42, 0.84, 0.84), disc(c, 0.2, 0, 0.08, colour)),
  loose: (c, colour) => (disc(c, 0, 0, 0.42, colour), drawKey(c, inkOn(colour))),
  content: (c, colour) => (c.fillStyle = colour, c.fillRect(-0.42, -0.42, 0.92, 0.84), drawKey(c, inkOn(colour))),
  lock(c, colour) {
    c.fillStyle = colour;
    c.fillRect(-0.5, -0.42, 0.92, 0.84);
    disc(c, 0, -0.1, 0.13, inkOn(colour));
    polygon(c, inkOn(colour), [[0, -0.14], [0.13, 0.24], [-0.13, 0.24]]);
  },
  gem: (c) => polygon(c, "#58d6ff", [[-0.2, -0.24], [0.2, -0.24], [0.36, -0.04], [0, 0.34], [-0.36, -0.04]]),
  explorer: (c, colour) => (disc(c, 0, 0, 0.46, colour || INK), disc(c, 0, 0, 0.32, "#404040"), eyes(c, 0.1, 0.05, 0)),
};

function block(c, colour, inset = 0) {
  c.fillStyle = colour;
  c.fillRect(-0.5 + inset, -0.5 + inset, 1 - 2 * inset, 1 - 2 * inset);
}

function disc(c, x, y, radius, colour) {
  c.fillStyle = colour;
  c.beginPath();
  c.arc(x, y, radius, 0, 2 * Math.PI);
  c.fill();
}

function polygon(c, colour, corners) {
  c.fillStyle = colour;
  c.beginPath();
  for (const [x, y] of corners) c.lineTo(x, y);
  c.fill();
}

function drawKey(c, colour) {
  c.strokeStyle = c.fillStyle = colour;
  c.lineWidth = 0.08;
  c.beginPath();
  c.arc(-0.16, 0, 0.13, 0, 2 * Math.PI);
  c.stroke();
  c.fillRect(-0.04, -0.04, 0.36, 0.08);
  c.fillRect(0.24, 0, 0.08, 0.15);
  c.fillRect(0.1, 0, 0.07, 0.12);
}

function ghostBody(c, colour) {
  c.fillStyle = colour;
  c.beginPath();
  c.arc(0, -0.03, 0.4, Math.PI, 0);
  for (let toe = 3; toe > 0; toe--) c.arc(-0.4 + (toe - 0.5) * 0.267, 0.32, 0.133, 0, Math.PI);
  c.fill();
}

function ghostMouth(c, colour) {
  for (const x of [-0.14, 0.14]) disc(c, x, -0.1, 0.07, colour);
  c.fillStyle = colour;
  c.fillRect(-0.22, 0.11, 0.44, 0.07);
}

/** Eyes that look ahead. */
function eyes(c, white, black, turn) {
  const [right, down] = [Math.cos((turn * Math.PI) / 2), Math.sin((turn * Math.PI) / 2)];
  for (const x of [-0.15, 0.15]) {
    disc(c, x, -0.08, white, "#ffffff");
    disc(c, x + 0.06 * right, -0.08 + 0.06 * down, black, "#182070");
  }
}

function inkOn(colour) {
  const [r, g, b] = [1, 3, 5].map((i) => parseInt(colour.slice(i, i + 2), 16));
  return r + 2 * g + b > 400 ? INK : "#ffffff";
}

const TURNING = new Set(["pacman", "arrow"]);

/** Cells, drawn on a canvas; all steps are unpacked once, so that any of them can be shown. */
class Grid {
  constructor(packed, label) {
    Object.assign(this, packed);
    const cells = new Uint16Array(this.rows * this.columns);
    this.steps = packed.changes.map((change) => {
      for (let i = 0; i < change.length; i += 2) cells[change[i]] = change[i + 1];
      return cells.slice();
    });
    const size = { width: this.columns * SIDE, height: this.rows * SIDE };
    this.element = make("canvas", { ...size, role: "img", "aria-label": label });
  }

  show(step) {
    const c = this.element.getContext("2d");
    c.setTransform(SIDE, 0, 0, SIDE, 0, 0);
    c.fillStyle = "#090b1e";
    c.fillRect(0, 0, this.columns, this.rows);
    const cells = this.steps[step];
    this.drawTubes(c, cells);
    cells.forEach((glyph, cell) => this.drawGlyph(c, this.glyphs[glyph], cell % this.columns, Math.floor(cell / this.columns)));
    if (this.windows.length) this.drawWindow(c, this.windows[step]);
  }

  drawGlyph(c, [shape, colour, turn], column, row) {
    if (shape === "tube") return;
    c.save();
    c.translate(column + 0.5, row + 0.5);
    if (TURNING.has(shape)) c.rotate((turn * Math.PI) / 2);
    (SHAPES[shape] || SHAPES.fill)(c, colour, turn);
    c.restore();
  }

  /** Walls as tubes through the middles of neighbouring wall cells. */
  drawTubes(c, cells) {
    const shape = (row, column) => this.glyphs[cells[row * this.columns + column]][0];
    const isTube = (row, column) => row < this.rows && column < this.columns && shape(row, column) === "tube";
    c.lineCap = "round";
    for (const [colour, width] of [["#3e68e8", 0.66], ["#162268", 0.52]]) {
      c.strokeStyle = c.fillStyle = colour;
      c.lineWidth = width;
      c.beginPath();
      for (let row = 0; row < this.rows; row++) {
        for (let column = 0; column < this.columns; column++) {
          if (!isTube(row, column)) continue;
          const isBlock = isTube(row, column + 1) && isTube(row + 1, column) && isTube(row + 1, column + 1);
          if (isBlock) c.fillRect(column + 0.5, row + 0.5, 1, 1);
          for (const [down, right] of [[0, 0], [0, 1], [1, 0]]) {
            if (!isTube(row + down, column + right)) continue;
            c.moveTo(column + 0.5, row + 0.5);
            c.lineTo(column + right + 0.5, row + down + 0.5);
          }
        }
      }
      c.stroke();
    }
  }

  /** Dim everything outside the agent's window. */
  drawWindow(c, [top, left, rows, columns]) {
    c.fillStyle = "rgb(5 6 13 / 0.5)";
    c.beginPath();
    c.rect(0, 0, this.columns, this.rows);
    c.rect(left, top, columns, rows);
    c.fill("evenodd");
    c.strokeStyle = "#ffffff";
    c.lineWidth = 0.08;
    c.strokeRect(left, top, columns, rows);
  }
}

/** Frames that were recorded. */
class Frames {
  constructor(packed, label) {
    Object.assign(this, packed);
    this.element = make("img", { alt: label });
  }

  show(step) {
    this.element.src = `data:${this.type};base64,${this.frames[this.order[step]]}`;
  }
}

function pictureOf(packed, label) {
  return packed.frames ? new Frames(packed, label) : new Grid(packed, label);
}
