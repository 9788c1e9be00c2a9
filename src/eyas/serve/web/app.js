// Puts the page together.

import { setKey } from "./api.js";
import { Chat } from "./chat.js";
import { offerSteps, wireControls } from "./controls.js";
import { DEEPEST, find, make } from "./dom.js";
import { Figures } from "./figures.js";

const PROMPTS = [
  ["Write code", "Write a Python function that returns the n-th Fibonacci number, with a docstring and two examples."],
  ["Explain", "Explain in five short sentences why the sky is blue."],
  ["Rewrite", "Repeat this list in alphabetical order, one a line: falcon, eagle, kestrel, buzzard, osprey, merlin."],
];
const THEMES = ["as the system", "light", "dark"];

const question = find("question");
const narrow = matchMedia("(max-width: 60rem)");

function askForKey(text) {
  find("key-form").hidden = false;
  find("key").focus();
  if (text) question.value = text;
}

const figures = new Figures({ onUnauthorized: askForKey, onSteps: offerSteps });
const chat = new Chat({
  onUnauthorized: askForKey,
  onBusy: (busy) => {
    find("send").hidden = busy;
    find("stop").hidden = !busy;
    if (!busy && document.activeElement === document.body) question.focus();
  },
});

function send(text) {
  if (chat.busy || !text.trim()) return;
  question.value = "";
  fit();
  chat.ask(text).then((sent) => {
    if (!sent) question.value = text;
  });
}

function fit() {
  question.style.height = "auto";
  question.style.height = `${Math.min(question.scrollHeight, innerHeight * 0.4)}px`;
}

function wireAsking() {
  find("prompts").append(
    ...PROMPTS.map(([name, text]) => {
      const button = make("button", { type: "button" }, make("b", { text: name }), make("span", { text }));
      button.addEventListener("click", () => send(text));
      return button;
    }),
  );
  find("ask").addEventListener("submit", (event) => {
    event.preventDefault();
    send(question.value);
  });
  question.addEventListener("input", fit);
  question.addEventListener("keydown", (event) => {
    // While a word is being composed, Enter belongs to the input method.
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    send(question.value);
  });
  find("stop").addEventListener("click", () => chat.stop());
  find("clear").addEventListener("click", () => {
    chat.clear();
    question.focus();
  });
  find("key-form").addEventListener("submit", (event) => {
    event.preventDefault();
    setKey(find("key").value);
    find("key").value = "";
    find("key-form").hidden = true;
    figures.look();
    question.focus();
  });
}

function wireKeys() {
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") {
      if (chat.busy) chat.stop();
      else showSide(false);
    }
    const writing = event.target.closest("input, textarea, select");
    if (event.key === "/" && !writing && !event.ctrlKey && !event.metaKey && !event.altKey) {
      event.preventDefault();
      question.focus();
    }
  });
}

function showSide(open) {
  if (!narrow.matches && open) return;
  const was = document.body.classList.contains("side-open");
  document.body.classList.toggle("side-open", open);
  find("open-side").setAttribute("aria-expanded", String(open));
  if (open) find("close-side").focus();
  else if (was) find("open-side").focus();
}

function wireLooks() {
  const root = document.documentElement;
  const setTheme = (theme) => {
    if (theme === THEMES[0]) delete root.dataset.theme;
    else root.dataset.theme = theme;
    find("theme").setAttribute("aria-label", `Theme: ${theme}`);
    find("theme").title = `Theme: ${theme}`;
    localStorage.setItem("eyas-theme", theme);
  };
  const saved = localStorage.getItem("eyas-theme");
  setTheme(THEMES.includes(saved) ? saved : THEMES[0]);
  find("theme").addEventListener("click", () => {
    setTheme(THEMES[(THEMES.indexOf(root.dataset.theme ?? THEMES[0]) + 1) % THEMES.length]);
  });
  find("origins").addEventListener("click", () => {
    const off = document.body.classList.toggle("no-origins");
    find("origins").setAttribute("aria-pressed", String(!off));
  });
  find("open-side").addEventListener("click", () => showSide(true));
  find("close-side").addEventListener("click", () => showSide(false));
  const names = ["target", ...Array.from({ length: DEEPEST }, (_, i) => `d${i + 1}${i + 1 === DEEPEST ? "+" : ""}`)];
  find("legend-list").append(...names.map((name, i) => make("li", {}, make("span", { class: `t o${i}`, text: name }))));
}

wireControls();
wireAsking();
wireKeys();
wireLooks();
figures.start();
question.focus();
