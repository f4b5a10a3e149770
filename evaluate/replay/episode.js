// One agent's episode: its pictures, numbers and policy at a step, and its time lines.

const STYLES = ["own", "reset", "recent"];
const GROUPS = { attention: "Attention along the episode", slots: "Slots", gates: "Gates", state: "State" };

class Episode {
  constructor(run, goTo) {
    Object.assign(this, { run, goTo, parts: [] });
    this.returns = [0, ...runningSum(run.rewards)]; // before each step, and at the end
    this.strips = run.strips.map((packed) => new Strip(packed));
    const now = make("div", { class: "now" }, this.stage(), this.numbers(), this.policy());
    const along = make("div", { class: "along" }, this.influence(), ...this.lines());
    (RUNS.length > 1 ? along : now).append(...this.heads()); // so that the time lines of several episodes align
    along.append(...this.memory());
    this.element = make("section", { class: "episode", "aria-label": run.name });
    this.element.append(make("h2", {}, run.name), make("p", { class: "dim" }, run.facts));
    if (run.mission) this.element.append(make("p", { class: "mission" }, `“${run.mission}”`));
    this.element.append(make("div", { class: "body" }, now, along));
  }

  add(part) {
    this.parts.push(part);
    return part.element;
  }

  stage() {
    const stage = make("div", { class: "stage" });
    const caption = make("figcaption", { class: "end" });
    this.parts.push({ show: (step) => (caption.textContent = step < this.run.length ? "environment" : this.run.end) });
    stage.append(make("figure", {}, this.add(pictureOf(this.run.scene, "The environment")), caption));
    if (this.run.view) {
      const view = this.add(pictureOf(this.run.view, "What the agent sees"));
      stage.append(make("figure", { class: "view" }, view, make("figcaption", {}, "what the agent sees")));
    }
    return stage;
  }

  numbers() {
    const list = make("dl", { class: "numbers" });
    const { run, returns } = this;
    const at = (values, digits) => (step) => (step < values.length ? number(values[step], digits) : "–");
    const shown = {
      return: (step) => number(returns[step]),
      action: (step) => run.actions[step] ?? "–",
      reward: at(run.rewards),
    };
    if (run.values) shown.value = at(run.values);
    if (run.compared.length) shown.divergence = at(run.compared[0].divergence);
    for (const [name, values] of Object.entries(run.counters)) shown[name] = at(values, 0);
    const places = Object.entries(shown).map(([name, read]) => {
      const place = make("dd", { "data-number": name });
      list.append(make("div", {}, make("dt", {}, name), place));
      return [place, read];
    });
    this.parts.push({ show: (step) => places.forEach(([place, read]) => (place.textContent = place.title = read(step))) });
    return list;
  }

  /** The policy, and the policies with less memory, side by side: probabilities, and means of continuous numbers. */
  policy() {
    const { run } = this;
    const policies = [{ name: "policy", shares: run.shares }, ...run.compared];
    const head = make("tr", {}, make("th", { scope: "col" }, "action"), ...policies.map((p) => make("th", { scope: "col" }, p.name)));
    const body = make("tbody");
    const rows = run.rows.map(({ name, bounds }, index) => {
      const bars = policies.map((_, i) => make("div", { class: "bar" }, make("i", { class: STYLES[i] }), make("span", { "data-policy": i })));
      const row = make("tr", {}, make("th", { scope: "row" }, name), ...bars.map((bar) => make("td", {}, bar)));
      body.append(row);
      return { row, index, bounds, bars };
    });
    const show = (step) => {
      for (const { row, index, bounds, bars } of rows) {
        row.classList.toggle("chosen", run.chosen[step]?.includes(index) ?? false);
        bars.forEach((bar, i) => {
          const share = policies[i].shares[step]?.[index];
          bar.firstChild.style.width = share === undefined ? "0" : `${100 * share}%`;
          bar.lastChild.textContent = share === undefined ? "" : bounds ? between(bounds, share) : percent(share);
        });
      }
    };
    this.parts.push({ show });
    return make("table", { class: "policy" }, make("thead", {}, head), body);
  }

  /** Where memory matters: the divergence between the policies, and its peaks. */
  influence() {
    const { run } = this;
    const place = make("div", {}, make("h3", {}, "Where memory matters"));
    if (!run.compared.length) {
      place.append(make("p", { class: "dim" }, run.note));
      return place;
    }
    const lines = run.compared.map((c, i) => ({ name: c.name, values: c.divergence, style: STYLES[i + 1] }));
    const plot = new LinePlot("divergence of the policy (nats)", lines, this.goTo, { area: true });
    plot.box.classList.add("tall");
    const peaks = make("div", { class: "peaks", role: "group", "aria-label": "Steps where memory matters most" });
    const buttons = run.peaks.map((step) => {
      const label = `step ${step}: divergence ${number(run.compared[0].divergence[step])}`;
      const button = make("button", { "aria-label": label, title: label, "data-step": step }, "▲");
      button.style.left = `${(100 * (step + 0.5)) / run.length}%`;
      button.addEventListener("click", () => this.goTo(step));
      peaks.append(button);
      return [button, step];
    });
    this.parts.push({ show: (now) => buttons.forEach(([button, step]) => button.setAttribute("aria-current", step === now)) });
    place.append(this.add(plot), peaks);
    const counts = run.compared.map((c) => `${c.name}: at ${c.changed} of ${run.length} steps`).join("; ");
    place.append(make("p", { class: "dim" }, `Another action is most likely with ${counts}.`));
    return place;
  }

  lines() {
    const { run, returns, goTo } = this;
    const line = (name, values, style) => [{ name, values, style }];
    const values = run.values ? [this.add(new LinePlot("value estimate", line("value", run.values, "value"), goTo))] : [];
    return [
      ...values,
      this.add(new LinePlot("return", line("return", returns.slice(0, -1), "own"), goTo, { steps: true })),
      this.add(new LinePlot("reward", line("reward", run.rewards, "reward"), goTo, { steps: true })),
    ];
  }

  heads() {
    const tables = this.strips.filter((strip) => strip.shape);
    if (!tables.length) return [];
    const heads = make("div", { class: "heads" }, ...tables.map((strip) => this.add(new HeadPlot(strip))));
    return [make("div", { class: "group" }, make("h3", {}, "Where each slot looks now"), heads)];
  }

  memory() {
    return Object.entries(GROUPS).flatMap(([group, title]) => {
      const strips = this.strips.filter((strip) => strip.group === group);
      if (!strips.length) return [];
      const plots = strips.map((strip) => this.add(new StripPlot(strip, this.goTo)));
      return [make("div", { class: "group" }, make("h3", {}, title), ...plots)];
    });
  }

  /** Show a step; an episode that is over stays at its end. */
  show(step) {
    for (const part of this.parts) part.show(Math.min(step, this.run.length));
  }

  paint() {
    for (const part of this.parts) part.paint?.();
  }
}
