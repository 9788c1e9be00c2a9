// The conversation: questions, answers as they come, and what each of them took.

import { Answer, Credits } from "./answer.js";
import { stream } from "./api.js";
import { controlsAreValid, requestOf } from "./controls.js";
import { find, make, originName, pace, percent, shown } from "./dom.js";
import { shareBar } from "./figures.js";

const PATH = "/v1/chat/completions";

export class Chat {
  constructor({ onUnauthorized, onBusy }) {
    this.onUnauthorized = onUnauthorized;
    this.onBusy = onBusy;
    this.turns = [];
    this.abort = null;
  }

  get busy() {
    return this.abort !== null;
  }

  async ask(question) {
    if (this.busy || !question.trim() || !controlsAreValid()) return false;
    this.turns.push({ role: "user", content: question });
    find("empty").hidden = true;
    const asked = make("article", { class: "turn user", "aria-label": "You" }, make("p", { text: question }));
    find("talk").append(asked);
    await this.answer([asked]);
    return true;
  }

  // `elements`: the question's, taken away again if the server wants a key first.
  async answer(elements) {
    const turn = make("article", { class: "turn target", "aria-label": "Answer", "aria-busy": "true" });
    const body = turn.appendChild(make("div", { class: "text" }));
    find("talk").append(turn);
    const request = requestOf(this.turns);
    const run = new Run(new Answer(body), body);
    let kept = null;
    this.begin();
    follow(turn, true);
    try {
      await stream(PATH, request, this.abort.signal, (event) => run.take(event, () => follow(turn)));
      kept = "whole";
    } catch (error) {
      kept = this.failed(error, turn, elements, run);
    }
    run.end();
    this.end();
    turn.removeAttribute("aria-busy");
    if (kept === null) return;
    if (run.answer.text) this.turns.push({ role: "assistant", content: run.answer.text });
    else if (kept !== "whole") this.offerAgain(this.turns.pop().content, [...elements, turn]);
    if (run.answer.text) turn.append(this.under(run, request, kept));
    find("told").textContent = `Answer ${kept === "whole" ? "ends" : "broken off"}: ${run.words()}`;
    follow(turn);
  }

  // What is left of an answer that came to an error; null: nothing, ask again.
  failed(error, turn, elements, run) {
    if (error.name === "AbortError") return "stopped";
    if (error.status === 401) {
      for (const element of [...elements, turn]) element.remove();
      this.onUnauthorized(this.turns.pop().content);
      return null;
    }
    const code = error.code ? make("code", { text: error.code }) : "";
    turn.append(make("p", { class: "error", role: "alert" }, make("span", { text: error.message }), " ", code));
    return "failed";
  }

  offerAgain(question, elements) {
    const again = make("button", { type: "button", text: "Ask again" });
    again.addEventListener("click", () => {
      if (this.busy) return;
      for (const element of elements) element.remove();
      this.ask(question);
    });
    elements.at(-1).append(make("p", { class: "again" }, again));
  }

  begin() {
    this.abort = new AbortController();
    this.onBusy(true);
  }

  end() {
    this.abort = null;
    this.onBusy(false);
  }

  stop() {
    this.abort?.abort();
  }

  clear() {
    this.stop();
    this.turns = [];
    find("talk").replaceChildren();
    find("empty").hidden = false;
  }

  under(run, request, kept) {
    const counts = run.credits.counts();
    const line = make("div", { class: "under-answer" });
    if (counts.length) {
      const bar = shareBar(counts);
      const total = counts.reduce((sum, [, n]) => sum + n, 0);
      bar.setAttribute("aria-label", counts.map(([origin, n]) => `${originName(origin)} ${percent(n / total)}`).join(", "));
      line.append(bar);
    }
    const facts = make("p", { class: "facts" }, ...run.facts(kept).map((fact) => make("span", { text: fact })));
    const buttons = make("p", { class: "buttons" });
    const copy = make("button", { type: "button", class: "quiet", text: "Copy" });
    copy.addEventListener("click", () => copyText(run.answer.text, copy));
    buttons.append(copy);
    if (kept === "whole" && run.speculation?.rounds && request.speculation !== false) {
      const again = make("button", { type: "button", class: "quiet", text: "Compare without drafts" });
      again.addEventListener("click", () => this.compare(run, request, again));
      buttons.append(again);
    }
    line.append(facts, buttons);
    return line;
  }

  // The same request, decoded plainly: the text must be the same, and the pace tells what the drafts gave.
  async compare(run, request, button) {
    if (this.busy) return;
    button.disabled = true;
    button.textContent = "Without drafts…";
    const plain = new Run(null, null);
    const body = { ...request, speculation: false, origins: false };
    if (run.seed !== null) body.seed = run.seed;
    this.begin();
    let words = null;
    try {
      await stream(PATH, body, this.abort.signal, (event) => plain.take(event));
      const same = plain.text === run.text;
      const ratio = run.pace && plain.pace ? `, and ${shown(run.pace / plain.pace, 2)} times the pace` : "";
      words = `without drafts ${pace(plain.pace)} tok/s: ${same ? "the same text" : "another text"}${ratio}`;
    } catch (error) {
      words = error.name === "AbortError" ? null : `without drafts: ${error.message}`;
    }
    this.end();
    if (words === null) {
      button.disabled = false;
      button.textContent = "Compare without drafts";
    } else {
      button.replaceWith(make("span", { class: "compared", role: "status", text: words }));
    }
  }
}

// One answer on its way: what came, and when. `answer` null: only counted.
class Run {
  constructor(answer, body) {
    this.answer = answer;
    this.body = body;
    this.text = "";
    this.reasoning = null;
    this.credits = new Credits();
    this.asked = performance.now();
    this.first = this.last = this.seed = this.finish = this.usage = this.speculation = null;
    this.frame = null;
  }

  take(event, drawn) {
    this.usage = event.usage ?? this.usage;
    this.speculation = event.speculation ?? this.speculation;
    for (const choice of event.choices ?? []) {
      this.seed = choice.seed ?? this.seed;
      this.finish = choice.finish_reason ?? this.finish;
      this.credits.told(choice.origins ?? []);
      const { content, reasoning_content: reasoning } = choice.delta ?? {};
      if (!content && !reasoning) continue;
      this.last = performance.now();
      this.first ??= this.last;
      this.text += content ?? "";
      if (!this.answer) continue;
      if (reasoning) this.think(reasoning);
      for (const [text, origin] of this.credits.of(content ?? "")) this.answer.add(text, origin);
      this.frame ??= requestAnimationFrame(() => {
        this.frame = null;
        this.answer.draw();
        drawn();
      });
    }
  }

  think(text) {
    if (!this.reasoning) {
      this.reasoning = make("p");
      this.body.before(make("details", { class: "reasoning", open: true }, make("summary", { text: "Reasoning" }), this.reasoning));
    }
    this.reasoning.append(text);
  }

  end() {
    if (this.frame !== null) cancelAnimationFrame(this.frame);
    this.answer.draw();
  }

  // Tokens/s after the first; null where there are too few to say.
  get pace() {
    const seconds = (this.last - this.first) / 1000;
    const tokens = this.usage?.completion_tokens;
    return tokens > 1 && seconds > 0 ? (tokens - 1) / seconds : null;
  }

  facts(kept) {
    const { speculation, usage } = this;
    const facts = [];
    if (speculation?.rounds) {
      const cut = speculation.cut_rounds ? `, ${speculation.cut_rounds} cut` : "";
      facts.push(`accept length ${shown(speculation.accept_length, 2)} of ${shown(speculation.ceiling)}`);
      facts.push(`${shown(speculation.rounds)} rounds${cut}`);
    } else if (speculation?.plain_rounds) facts.push("no drafts");
    if (usage) facts.push(`${shown(usage.completion_tokens)} tokens`);
    if (this.pace) facts.push(`${pace(this.pace)} tok/s`);
    if (this.first) facts.push(`first after ${shown((this.first - this.asked) / 1000, 2)} s`);
    if (usage?.prompt_tokens_details?.cached_tokens) facts.push(`${shown(usage.prompt_tokens_details.cached_tokens)} of ${shown(usage.prompt_tokens)} prompt tokens cached`);
    if (this.finish === "length") facts.push("ended by the limit");
    if (kept !== "whole") facts.push(kept);
    return facts;
  }

  words() {
    return this.facts("whole").join(", ");
  }
}

// Keep the end in sight, unless the reader looked elsewhere.
function follow(turn, always = false) {
  const page = turn.closest("main");
  if (always || page.scrollHeight - page.scrollTop - page.clientHeight < 160) page.scrollTop = page.scrollHeight;
}

async function copyText(text, button) {
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
  } catch {
    // Off localhost without TLS there is no clipboard: select it, and the reader's own copy works.
    getSelection().selectAllChildren(button.closest(".turn").querySelector(".text"));
    button.textContent = "Selected: Ctrl+C";
  }
  setTimeout(() => (button.textContent = "Copy"), 2000);
}
