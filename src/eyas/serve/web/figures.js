// The side: accept length, survival, pace and load, from GET /live; flags from GET /server_info.

import { getJson } from "./api.js";
import { DEEPEST, find, make, pace, percent, shape, shown } from "./dom.js";

const PERIOD = 1000; // milliseconds between two looks
const POINTS = 60; // of the sparkline
const STEADY = 4; // looks in a row with something running
const PLAIN_MEANS = "plain: what the same batch would make without drafts";

export class Figures {
  constructor({ onUnauthorized, onSteps }) {
    this.onUnauthorized = onUnauthorized;
    this.onSteps = onSteps;
    this.paces = [];
    this.plains = [];
    this.info = null;
    this.steady = 0;
    this.failures = 0;
    this.timer = null;
  }

  start() {
    this.look();
    document.addEventListener("visibilitychange", () => this.look());
  }

  async look() {
    clearTimeout(this.timer);
    if (document.hidden) return;
    try {
      const live = await getJson("/live");
      this.failures = 0;
      if (live.ready && this.restarts !== live.restarts) await this.readInfo(live.restarts);
      this.show(live);
    } catch (error) {
      this.failures += 1;
      if (error.status === 401) {
        this.tell("needs a key", "wait");
        this.onUnauthorized();
        return; // `look` is called again with the key
      }
      this.tell("not reachable", "bad");
    }
    this.timer = setTimeout(() => this.look(), Math.min(15, 1 + this.failures) * PERIOD);
  }

  async readInfo(restarts) {
    this.info = await getJson("/server_info");
    this.restarts = restarts;
    const settings = this.speculation();
    this.onSteps(settings === undefined ? null : (settings?.num_steps ?? 0));
    this.showFlags(this.info.settings ?? {});
  }

  // undefined: not said; null: no draft.
  speculation() {
    return this.info?.speculation;
  }

  // Of the contract, for the prompt set that stands for all, else the first.
  expected() {
    const all = this.info?.loaded?.facts?.draft?.contract?.expected ?? [];
    return all.find((entry) => /\ball\b/.test(entry.prompt_set)) ?? all[0] ?? null;
  }

  ceiling(figures) {
    const settings = this.speculation();
    if (settings?.num_steps) {
      const nodes = (settings.num_draft_tokens ?? settings.num_steps + 1) - 1;
      return 1 + (settings.eagle_topk > 1 ? Math.min(settings.num_steps, nodes) : settings.num_steps);
    }
    return figures ? 1 + figures.survival.length : null;
  }

  tell(words, tone) {
    if (find("state").textContent !== words) find("state").textContent = words;
    find("dot").className = `dot ${tone}`;
  }

  show(live) {
    find("model").textContent = live.model ?? "";
    const restarts = live.restarts ? `, restarted ${live.restarts === 1 ? "once" : `${live.restarts} times`}` : "";
    this.tell((live.ready ? "ready" : "loading") + restarts, live.ready ? (live.restarts ? "wait" : "good") : "wait");
    const busy = live.running > 0;
    this.showPace(live, busy);
    this.showLoad(live);
    const figures = live.recent ?? live.total ?? null;
    this.showLength(figures, Boolean(live.recent), live);
    this.showSurvival(figures);
  }

  showPace(live, busy) {
    const now = live.tokens_per_second === undefined ? null : busy ? live.tokens_per_second : 0;
    const plain = busy ? (live.plain_tokens_per_second ?? null) : null;
    this.paces.push(now ?? 0);
    this.plains.push(plain);
    this.paces.splice(0, this.paces.length - POINTS);
    this.plains.splice(0, this.plains.length - POINTS);
    this.drawSpark();
    find("strip-pace").textContent = pace(now);
    // The engine's pace is a mean over seconds: soon after the start it is still of the time before.
    this.steady = busy ? this.steady + 1 : 0;
    if (busy) this.last = { now, plain, steady: this.steady >= STEADY };
    const kept = this.last ?? { now, plain };
    const most = Math.max(kept.now ?? 0, kept.plain ?? 0, 1e-9);
    find("pace").classList.toggle("stale", !busy);
    find("pace").replaceChildren(
      ...bar("now", kept.now === null ? 0 : kept.now / most, pace(kept.now), "now"),
      ...bar("plain", kept.plain === null ? 0 : kept.plain / most, pace(kept.plain), "plain"),
    );
    const ratio = kept.plain && kept.steady ? `${shown(kept.now / kept.plain, 2)} times the pace without drafts` : null;
    const idle = this.last ? "idle, the last" : "idle";
    find("pace-note").textContent = [busy ? null : idle, ratio].filter(Boolean).join(": ") || PLAIN_MEANS;
  }

  drawSpark() {
    const most = Math.max(...this.paces, ...this.plains.map((value) => value ?? 0), 1);
    const step = 120 / (POINTS - 1);
    const left = 120 - (this.paces.length - 1) * step;
    const points = this.paces.map((value, i) => `${(left + i * step).toFixed(1)} ${(26 - (23 * value) / most).toFixed(1)}`);
    const [area, line] = find("spark").children;
    line.setAttribute("d", `M${points.join("L")}`);
    area.setAttribute("d", `M${left.toFixed(1)} 28L${points.join("L")}L120 28Z`);
  }

  showLoad(live) {
    const used = live.slots_used / live.slots_total;
    const kept = live.slots_kept / live.slots_total;
    find("strip-running").textContent = shown(live.running);
    find("strip-waiting").textContent = shown(live.waiting);
    find("strip-kv").textContent = percent(used);
    const rows = [
      ["Running", shown(live.running)],
      ["Queued", shown(live.waiting)],
      ["K, mean", shown(live.num_steps, 1)],
      ["KV in use", percent(used)],
    ];
    find("load").replaceChildren(
      ...rows.map(([name, value]) => make("div", {}, make("dt", { text: name }), make("dd", { class: "number", text: value }))),
    );
    const parts = [["used", used], ["kept", kept]].map(([name, share]) => {
      const part = make("span", { class: name });
      part.style.width = `${100 * (share || 0)}%`;
      return part;
    });
    find("kv-bar").replaceChildren(...parts);
    find("kv-bar").setAttribute("aria-label", `KV: ${percent(used)} by requests, ${percent(kept)} by the prefix cache`);
  }

  showLength(figures, recent, live) {
    const ceiling = this.ceiling(figures);
    find("length").textContent = shown(figures?.accept_length, 2);
    find("length").classList.toggle("none", !figures);
    find("ceiling").textContent = shown(ceiling);
    const expected = this.expected();
    const place = (value) => `${(100 * (value - 1)) / Math.max(ceiling - 1, 1)}%`;
    const fill = make("span", { class: "fill" });
    fill.style.width = figures ? place(figures.accept_length) : "0";
    const marks = [];
    if (expected && ceiling > 1) {
      // AL = 1 + Σ survival: of as many steps as run here.
      const promised = 1 + expected.survival.slice(0, ceiling - 1).reduce((sum, share) => sum + share, 0);
      const mark = make("span", { class: "mark-at", title: `expected ${shown(promised, 2)}` });
      mark.style.left = place(promised);
      marks.push(mark);
    }
    const ticks = Array.from({ length: Math.max(0, (ceiling ?? 1) - 2) }, (_, i) => {
      const tick = make("span", { class: "tick" });
      tick.style.left = place(i + 2);
      return tick;
    });
    find("length-bar").replaceChildren(fill, ...ticks, ...marks);
    const span = recent ? "last 20 s" : "since the start";
    const total = live.total && recent ? `; ${shown(live.total.accept_length, 2)} since the start` : "";
    const none = this.speculation() === null ? "the server runs without a draft" : "no round yet";
    find("length-note").textContent = figures ? `${span}: ${shown(figures.rounds)} rounds${total}` : none;
    find("length-bar").setAttribute("aria-label", `accept length ${shown(figures?.accept_length, 2)} of at most ${shown(ceiling)}`);
  }

  showSurvival(figures) {
    const expected = this.expected();
    const depth = Math.max((this.ceiling(figures) ?? 1) - 1, figures?.survival.length ?? 0);
    const rows = Array.from({ length: depth }, (_, i) => {
      const share = figures?.survival[i] ?? null;
      const promised = expected?.survival[i] ?? null;
      const possible = figures ? (figures.possible[i] ?? 0) : null;
      const track = make("span", { class: "track" });
      const fill = make("span", { class: `fill o${Math.min(i + 1, DEEPEST)}` });
      fill.style.width = `${100 * (share ?? 0)}%`;
      const room = make("span", { class: "room" });
      room.style.width = `${100 * (possible ?? 0)}%`;
      track.append(room, fill);
      if (promised !== null) {
        const mark = make("span", { class: "mark-at" });
        mark.style.left = `${100 * promised}%`;
        track.append(mark);
      }
      const told = [`at least ${i + 1}: ${percent(share)} of rounds`, `proposed by ${percent(possible)}`,
        promised === null ? "" : `expected ${percent(promised)}`].filter(Boolean).join(", ");
      return make("div", { role: "listitem", title: told }, make("span", { class: "name", text: `≥ ${i + 1}` }), track,
        make("span", { class: "number", text: percent(share) }), make("span", { class: "hidden", text: told }));
    });
    find("survival").replaceChildren(...rows);
    const fewer = figures?.possible.some((possible) => possible < 0.995);
    const marks = expected ? `marks: the draft’s contract, ${expected.prompt_set}, K = ${expected.num_steps}` : "";
    find("survival-note").textContent =
      [marks, fewer ? "shaded: rounds that proposed as many" : ""].filter(Boolean).join("; ") || "rounds that accept at least so many drafts";
  }

  showFlags(settings) {
    const rows = Object.entries(settings).map(([name, entry]) => {
      const [value, origin] = valueAndOrigin(entry);
      const given = origin && !/default/.test(origin);
      return make("tr", { class: given ? "given" : null }, make("th", { scope: "row", text: name }),
        make("td", { text: plain(value) }), make("td", { text: origin ?? "" }));
    });
    find("flags").replaceChildren(...rows);
  }
}

function valueAndOrigin(entry) {
  if (entry && typeof entry === "object" && "value" in entry) return [entry.value, entry.origin ?? null];
  return [entry, null];
}

function plain(value) {
  if (value === null || value === undefined) return "none";
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}

function bar(name, share, number, tone) {
  const fill = make("span", { class: `fill ${tone}` });
  fill.style.width = `${100 * share}%`;
  return [make("span", { class: "name", text: name }), make("span", { class: "track" }, fill), make("span", { class: "number", text: number })];
}

// A stacked bar of shares, for under an answer.
export function shareBar(counts) {
  const total = counts.reduce((sum, [, n]) => sum + n, 0);
  const svg = shape("svg", { class: "share", viewBox: "0 0 100 6", preserveAspectRatio: "none", role: "img" });
  let at = 0;
  for (const [origin, n] of counts) {
    const width = (100 * n) / total;
    svg.append(shape("rect", { x: at, y: 0, width, height: 6, class: `o${Math.min(origin, DEEPEST)}` }));
    at += width;
  }
  return svg;
}
