// What a request asks for, as the controls say it; the server's own defaults where they say nothing.

import { find, make, shown } from "./dom.js";

const MOST_STEPS = 8; // offered where the server does not say how many it runs

export function wireControls() {
  for (const [id, off] of [["temperature", [0, "0, greedy"]], ["top_p", [1, "1, off"]]]) {
    const input = find(id);
    const tell = () => {
      find(`${id}-out`).value = Number(input.value) === off[0] ? off[1] : shown(Number(input.value), 2);
    };
    input.addEventListener("input", tell);
    tell();
  }
  find("controls").addEventListener("submit", (event) => event.preventDefault());
}

// `steps`: the most that a round proposes here; 0: there is no draft; null: not known.
export function offerSteps(steps) {
  const select = find("steps");
  const chosen = select.value;
  const most = steps ?? MOST_STEPS;
  const numbers = Array.from({ length: most }, (_, i) => make("option", { value: i + 1, text: String(i + 1) }));
  select.replaceChildren(...[...select.options].slice(0, 2), ...numbers);
  select.value = [...select.options].some((option) => option.value === chosen) ? chosen : "auto";
  select.disabled = steps === 0;
  if (steps === 0) select.options[0].textContent = "no draft here";
}

const whole = (id) => (find(id).value === "" ? null : Number(find(id).value));

// False, with the field shown, if one holds what cannot be sent.
export const controlsAreValid = () => find("controls").reportValidity();

export function requestOf(turns) {
  const system = find("system").value.trim();
  const steps = find("steps").value;
  const body = {
    // A copy: the talk goes on, and this request may be made again.
    messages: system ? [{ role: "system", content: system }, ...turns] : [...turns],
    max_tokens: whole("max_tokens"),
    temperature: Number(find("temperature").value),
    top_p: Number(find("top_p").value),
    stream: true,
    stream_options: { include_usage: true },
    speculation_figures: true,
    origins: true,
  };
  if (whole("seed") !== null) body.seed = whole("seed");
  if (!find("steps").disabled && steps !== "auto") body.speculation = steps === "off" ? false : { num_steps: Number(steps) };
  return body;
}
