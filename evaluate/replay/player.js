// The controls: one clock for all episodes of the page.

const by = (id) => document.getElementById(id);
const last = Math.max(...RUNS.map((run) => run.length));
const peakSteps = [...new Set(RUNS.flatMap((run) => run.peaks))].sort((a, b) => a - b);
const episodes = RUNS.map((run) => new Episode(run, (step) => goTo(step)));

let step = 0;
let isPlaying = false;
let linkTimer;

function goTo(wanted) {
  step = Math.max(0, Math.min(last, wanted));
  for (const episode of episodes) episode.show(step);
  by("scrub").value = step;
  by("scrub").setAttribute("aria-valuetext", `step ${step} of ${last}`);
  by("step").textContent = `step ${step} / ${last}`;
  if (step === last) setPlaying(false);
  if (!isPlaying) keepLink();
}

/** Put the step into the address. Browsers limit the number of changes per second. */
function keepLink() {
  clearTimeout(linkTimer);
  linkTimer = setTimeout(() => history.replaceState(null, "", `#t=${step}`), 200);
}

function readLink() {
  const found = /^#t=(\d{1,9})$/.exec(location.hash);
  if (found) goTo(Number(found[1]));
}

function setPlaying(wanted) {
  if (wanted === isPlaying) return;
  isPlaying = wanted;
  by("play").textContent = isPlaying ? "❚❚" : "▶";
  by("play").setAttribute("aria-label", isPlaying ? "Pause" : "Play");
  if (isPlaying) {
    if (step === last) goTo(0);
    startClock();
  } else keepLink();
}

function startClock() {
  let before = performance.now();
  let due = 0;
  const tick = (now) => {
    if (!isPlaying) return;
    due += (Math.max(0, now - before) / 1000) * Number(by("speed").value);
    before = now;
    if (due >= 1) {
      goTo(step + Math.floor(due));
      due %= 1;
    }
    requestAnimationFrame(tick);
  };
  requestAnimationFrame(tick);
}

function move(steps) {
  setPlaying(false);
  goTo(step + steps);
}

function toPeak(direction) {
  const found = direction > 0 ? peakSteps.find((peak) => peak > step) : peakSteps.findLast((peak) => peak < step);
  if (found !== undefined) move(found - step);
}

function changeSpeed(places) {
  const speed = by("speed");
  speed.selectedIndex = Math.max(0, Math.min(speed.length - 1, speed.selectedIndex + places));
}

const KEYS = {
  " ": () => setPlaying(!isPlaying),
  ArrowLeft: (event) => move(event.shiftKey ? -10 : -1),
  ArrowRight: (event) => move(event.shiftKey ? 10 : 1),
  Home: () => move(-last),
  End: () => move(last),
  p: () => toPeak(-1),
  n: () => toPeak(1),
  "+": () => changeSpeed(1),
  "-": () => changeSpeed(-1),
};

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches("select")) return;
  if (event.key === " " && event.target.matches("button, summary, a")) return; // it presses them
  const act = KEYS[event.key.length === 1 ? event.key.toLowerCase() : event.key];
  if (!act) return;
  event.preventDefault();
  act(event);
});

by("play").addEventListener("click", () => setPlaying(!isPlaying));
by("back").addEventListener("click", () => move(-1));
by("forward").addEventListener("click", () => move(1));
by("previous-peak").addEventListener("click", () => toPeak(-1));
by("next-peak").addEventListener("click", () => toPeak(1));
by("scrub").addEventListener("input", () => (setPlaying(false), goTo(Number(by("scrub").value))));
addEventListener("hashchange", readLink);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => episodes.forEach((episode) => episode.paint()));

document.title = `${RUNS.map((run) => run.name).join(", ")} · replay`;
by("title").textContent = RUNS.length > 1 ? "Replay, side by side" : "Replay";
by("scrub").max = last;
for (const id of ["previous-peak", "next-peak"]) by(id).disabled = peakSteps.length === 0;
by("episodes").append(...episodes.map((episode) => episode.element));
episodes.forEach((episode) => episode.paint());
goTo(0);
readLink();
