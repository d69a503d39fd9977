// Asking the server, with this tab's token where there is one.

const KEY = "dualform-token";

function kept() {
  try {
    return sessionStorage.getItem(KEY);
  } catch {
    return null;
  }
}

export function keep(token) {
  try {
    sessionStorage.setItem(KEY, token);
  } catch {
    // It lives as long as the page then.
  }
  held = token;
}

let held = kept();

/** The token in the address's fragment is taken out of it: whoever copies the address gives it to nobody. */
export function takeFromFragment() {
  const given = new URLSearchParams(location.hash.slice(1)).get("token");
  if (given === null) return;
  keep(given);
  history.replaceState(history.state, "", location.pathname + location.search);
}

export function ask(address, options = {}) {
  const headers = held ? { Authorization: `Bearer ${held}` } : {};
  return fetch(address, { ...options, headers });
}

/** The JSON objects of an answer that has one a line, each as it comes. */
export async function* lines(body) {
  let text = "";
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    text += value;
    const parts = text.split("\n");
    text = parts.pop();
    for (const part of parts) yield JSON.parse(part);
  }
}
