// An answer as it grows: its text, who wrote each part of it, and the elements that show both.

import { make, originClass, originName } from "./dom.js";
import { blocksOf, runsOf } from "./markdown.js";

const TAGS = { p: "p", quote: "blockquote", code: "pre", rule: "hr" };

export class Answer {
  constructor(container) {
    this.container = container;
    this.text = "";
    this.starts = []; // where each token's text begins
    this.origins = []; // 0 the target, i the draft's step i, null unknown
    this.shown = []; // [what a block was drawn from, its element]
  }

  add(text, origin) {
    if (text) {
      this.starts.push(this.text.length);
      this.origins.push(origin);
      this.text += text;
    }
  }

  draw() {
    const blocks = blocksOf(this.text);
    blocks.forEach((block, i) => {
      const key = `${block.kind} ${block.start} ${block.end} ${block.level ?? block.depth ?? ""} ${this.text.length > block.end}`;
      if (this.shown[i]?.[0] === key) return;
      const element = this.element(block);
      if (this.shown[i]) this.shown[i][1].replaceWith(element);
      else this.container.append(element);
      this.shown[i] = [key, element];
    });
    for (const [, element] of this.shown.splice(blocks.length)) element.remove();
  }

  element(block) {
    if (block.kind === "code") return this.code(block);
    // The page has its own headings above; a model's begin at h3.
    const tag = block.kind === "h" ? `h${Math.min(6, block.level + 2)}` : (TAGS[block.kind] ?? "div");
    const element = make(tag, { class: block.kind === "item" ? `item depth${block.depth}` : null });
    if (block.kind === "item") element.append(make("span", { class: "marker", text: block.marker }));
    const body = block.kind === "item" ? element.appendChild(make("span")) : element;
    block.ranges.forEach(([start, end], i) => {
      if (i > 0 && block.kind !== "quote") body.append("\n");
      for (const [from, to, style] of runsOf(this.text, start, end)) {
        const parent = style ? body.appendChild(make(style)) : body;
        this.tokens(parent, from, to);
      }
    });
    return element;
  }

  code(block) {
    const code = make("code");
    for (const [start, end] of block.ranges) this.tokens(code, start, end);
    const pre = make("pre", { tabindex: "0" }, code);
    if (block.language) pre.setAttribute("data-language", block.language);
    return pre;
  }

  tokens(parent, from, to) {
    for (let i = this.tokenAt(from); i < this.starts.length && this.starts[i] < to; i += 1) {
      const end = this.starts[i + 1] ?? this.text.length;
      const text = this.text.slice(Math.max(from, this.starts[i]), Math.min(to, end));
      const origin = this.origins[i];
      const title = origin === null ? null : originName(origin);
      parent.append(make("span", { class: `t ${originClass(origin)}`, title, text }));
    }
  }

  tokenAt(offset) {
    let low = 0;
    let high = this.starts.length - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (this.starts[middle] <= offset) low = middle;
      else high = middle - 1;
    }
    return low;
  }
}

// Who wrote which text. A token may be told of before its text comes: a parser can hold that back, or take it out.
export class Credits {
  constructor() {
    this.tokens = []; // [text, origin] whose text is still to come
    this.tally = new Map();
  }

  told(tokens) {
    for (const [text, origin] of tokens) {
      this.tally.set(origin, (this.tally.get(origin) ?? 0) + 1);
      if (text) this.tokens.push([text, origin]);
    }
  }

  // The parts of a text with their origins; null for what no token tells of.
  of(text) {
    if (!text) return [];
    const at = this.tokens.map(([part]) => part).join("").indexOf(text);
    if (at < 0) return [[text, null]];
    this.cut(at);
    return this.cut(text.length);
  }

  cut(length) {
    const parts = [];
    while (length > 0) {
      const [text, origin] = this.tokens[0];
      const part = text.slice(0, length);
      parts.push([part, origin]);
      length -= part.length;
      if (part.length === text.length) this.tokens.shift();
      else this.tokens[0] = [text.slice(part.length), origin];
    }
    return parts;
  }

  // [origin, tokens], the target first.
  counts() {
    return [...this.tally].sort(([a], [b]) => a - b);
  }
}
