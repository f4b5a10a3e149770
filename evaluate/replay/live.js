// For a page served during training: loads the next version, at the same step.

const POLL = 2000; // milliseconds

async function lookForNewer() {
  try {
    const newest = await (await fetch("version")).text();
    if (newest !== VERSION && !isPlaying) {
      history.replaceState(null, "", `#t=${step}`);
      location.reload();
    }
    by("live").textContent = newest === VERSION ? "live" : "live: pause to see a newer checkpoint";
  } catch {
    by("live").textContent = "the server has ended";
  }
}

by("live").hidden = false;
setInterval(lookForNewer, POLL);
