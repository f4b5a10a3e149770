// The data of the page and small helpers. Texts become only text nodes and attributes, never markup.

const { runs: RUNS, version: VERSION } = JSON.parse(document.getElementById("data").textContent);

/** An element with attributes and children; a text is a text node. */
function make(tag, attributes = {}, ...children) {
  const isDrawing = tag === "svg" || tag === "path";
  const element = isDrawing ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

/** A number with the given decimals, or if small two digits, and a true minus sign. */
function number(value, digits = 2) {
  const isSmall = digits > 0 && 1e-6 < Math.abs(value) && Math.abs(value) < 0.01;
  const text = isSmall ? String(Number(value.toPrecision(2))) : value.toFixed(digits);
  return (Number(text) === 0 ? text.replace("-", "") : text).replace("-", "−");
}

function percent(share) {
  return `${Math.round(100 * share)}%`;
}

function between([low, high], share) {
  return number(low + share * (high - low));
}

function runningSum(values) {
  let sum = 0;
  return values.map((value) => (sum += value));
}

/** A strip's values, a byte each: by step, then by row. */
class Strip {
  constructor(packed) {
    Object.assign(this, packed);
    this.rows = packed.labels.length;
    this.bytes = Uint8Array.from(atob(packed.data), (character) => character.charCodeAt(0));
    this.steps = this.bytes.length / this.rows;
  }

  value(step, row) {
    return this.low + (this.bytes[step * this.rows + row] / 255) * (this.high - this.low);
  }
}

/** Three numbers of a colour such as `--low: 27 31 46`. */
function channels(property) {
  return getComputedStyle(document.documentElement).getPropertyValue(property).trim().split(/\s+/).map(Number);
}

/** Red, green and blue of each byte; values below 0 have another colour than those above. */
function ramp(low, high) {
  const [none, middle, most, negative] = ["--low", "--middle", "--high", "--negative"].map(channels);
  const mix = (a, b, share) => a.map((x, i) => Math.round(x + share * (b[i] - x)));
  return Array.from({ length: 256 }, (_, byte) => {
    const value = low + (byte / 255) * (high - low);
    if (value < 0) return mix(none, negative, Math.min(1, value / low));
    const share = low < 0 ? value / high : byte / 255;
    return share < 0.5 ? mix(none, middle, 2 * share) : mix(middle, most, 2 * share - 1);
  });
}

const tip = document.getElementById("tip");

function showTip(text, x, y) {
  tip.textContent = text;
  tip.hidden = false;
  tip.style.left = `${Math.max(6, Math.min(x + 14, innerWidth - tip.offsetWidth - 6))}px`;
  tip.style.top = `${y > tip.offsetHeight + 20 ? y - tip.offsetHeight - 12 : y + 16}px`;
}

function hideTip() {
  tip.hidden = true;
}
