// Talking to the server: its key, JSON, and the stream of an answer.

const KEY = "eyas-key";

export class ApiError extends Error {
  constructor(status, detail) {
    super(detail?.message ?? `the server answered ${status}`);
    this.status = status;
    this.code = detail?.code ?? null;
  }
}

export const setKey = (key) => sessionStorage.setItem(KEY, key);

function headers(more = {}) {
  const key = sessionStorage.getItem(KEY);
  return key ? { ...more, authorization: `Bearer ${key}` } : more;
}

async function failed(response) {
  const body = await response.json().catch(() => null);
  return new ApiError(response.status, body?.error);
}

export async function getJson(path) {
  const response = await fetch(path, { headers: headers() });
  if (!response.ok) throw await failed(response);
  return response.json();
}

// Calls `each` with every event of a streamed answer.
export async function stream(path, body, signal, each) {
  const response = await fetch(path, {
    method: "POST",
    headers: headers({ "content-type": "application/json" }),
    body: JSON.stringify(body),
    signal,
  });
  if (!response.ok) throw await failed(response);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  let ended = false;
  for (;;) {
    const { value, done } = await reader.read();
    if (done) break;
    const lines = (rest + value).split(/\r?\n/);
    rest = lines.pop();
    for (const line of lines) {
      if (!line.startsWith("data:")) continue;
      const data = line.slice(5).trim();
      if (data === "[DONE]") {
        ended = true;
        continue;
      }
      const event = JSON.parse(data);
      if (event.error) throw new ApiError(200, event.error);
      each(event);
    }
  }
  if (!ended) throw new ApiError(200, { message: "the stream broke off before its end" });
}
