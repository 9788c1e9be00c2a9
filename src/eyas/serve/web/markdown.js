// The structure of a text as ranges into it: [start, end) with a style. It makes no elements, so it can carry no markup.

const FENCE = /^ {0,3}(`{3,}|~{3,})[ \t]*([\w+#.-]*)[^`]*$/;
const HEADING = /^(#{1,6})[ \t]+/;
const ITEM = /^([ \t]*)([-*+]|\d{1,9}[.)])[ \t]+/;
const QUOTE = /^ {0,3}> ?/;
const RULE = /^(?:-{3,}|\*{3,}|_{3,})$/;
const TABLE = /^ {0,3}\|/;

// Blocks in order: {kind, start, end, ranges, ...}. Kinds: p, h, item, quote, code, rule.
export function blocksOf(text) {
  const blocks = [];
  let open = null;
  let at = 0;
  const close = () => {
    open = null;
  };
  const begin = (block) => {
    open = block;
    blocks.push(block);
  };
  while (at < text.length) {
    const newline = text.indexOf("\n", at);
    const end = newline < 0 ? text.length : newline;
    const line = text.slice(at, end);
    const next = newline < 0 ? text.length : newline + 1;
    if (open?.kind === "code" && open.fence) {
      if (line.trim().startsWith(open.fence) && /^[`~]+$/.test(line.trim())) close();
      else open.ranges.push([at, next]);
      if (open) open.end = next;
      at = next;
      continue;
    }
    const fence = FENCE.exec(line);
    const heading = HEADING.exec(line);
    const item = ITEM.exec(line);
    const quote = QUOTE.exec(line);
    if (fence) begin({ kind: "code", fence: fence[1], language: fence[2], start: at, end: next, ranges: [] });
    else if (line.trim() === "") close();
    else if (RULE.test(line.replaceAll(/[ \t]/g, ""))) {
      begin({ kind: "rule", start: at, end: next, ranges: [] });
      close();
    } else if (heading) {
      begin({ kind: "h", level: heading[1].length, start: at, end: next, ranges: [[at + heading[0].length, end]] });
      close();
    } else if (TABLE.test(line)) {
      if (open?.kind !== "code") begin({ kind: "code", fence: null, language: "", start: at, end: next, ranges: [] });
      open.ranges.push([at, next]);
      open.end = next;
    } else if (item) {
      const depth = Math.min(4, Math.floor(item[1].replaceAll("\t", "    ").length / 2));
      const marker = /\d/.test(item[2]) ? item[2] : "•";
      begin({ kind: "item", depth, marker, start: at, end: next, ranges: [[at + item[0].length, end]] });
    } else if (quote) {
      if (open?.kind !== "quote") begin({ kind: "quote", start: at, end: next, ranges: [] });
      open.ranges.push([at + quote[0].length, next]);
      open.end = next;
    } else if (open && open.kind !== "code") {
      open.ranges.push([open.kind === "item" ? at + line.length - line.trimStart().length : at, end]);
      open.end = next;
    } else {
      begin({ kind: "p", start: at, end: next, ranges: [[at, end]] });
    }
    at = next;
  }
  return blocks;
}

const MARKS = [
  ["**", "strong"],
  ["__", "strong"],
  ["*", "em"],
  ["_", "em"],
];

// Runs of a range: [start, end, style or null], the marks left out. One pass; a mark without its end is a character.
export function runsOf(text, start, end) {
  const runs = [];
  const missing = new Set();
  let plain = start;
  let at = start;
  const styled = (open, close, length, style) => {
    if (open > plain) runs.push([plain, open, null]);
    runs.push([open + length, close, style]);
    at = plain = close + length;
  };
  while (at < end) {
    const character = text[at];
    if (character === "`") {
      let length = 1;
      while (text[at + length] === "`") length += 1;
      const close = closing(text, at + length, end, "`".repeat(length), missing);
      if (close > at + length) styled(at, close, length, "code");
      else at += length;
      continue;
    }
    const mark = MARKS.find(([sign]) => text.startsWith(sign, at));
    if (mark && opens(text, at, start, mark[0])) {
      const close = closing(text, at + mark[0].length, end, mark[0], missing);
      if (close > at + mark[0].length && closes(text, close, end, mark[0])) {
        styled(at, close, mark[0].length, mark[1]);
        continue;
      }
    }
    at += mark ? mark[0].length : 1;
  }
  if (end > plain) runs.push([plain, end, null]);
  return runs;
}

function closing(text, from, end, sign, missing) {
  if (missing.has(sign)) return -1;
  const found = text.indexOf(sign, from);
  if (found >= 0 && found + sign.length <= end) return found;
  missing.add(sign);
  return -1;
}

const word = (character) => character !== undefined && /[\p{L}\p{N}]/u.test(character);

function opens(text, at, start, sign) {
  const before = at > start ? text[at - 1] : undefined;
  return /\S/.test(text[at + sign.length] ?? " ") && !(word(before) && (sign[0] === "_" || sign === "*"));
}

function closes(text, at, end, sign) {
  const after = at + sign.length < end ? text[at + sign.length] : undefined;
  return /\S/.test(text[at - 1] ?? " ") && !(sign[0] === "_" && word(after));
}
