// Where the server's routes are, seen from a page that may live under a sub-path behind a proxy.

/** Of every request that changes something. */
export const HEADERS = { "Content-Type": "application/json", "X-VRAM-Pilot": "panel" };

const MARKERS = ["/file=", "/vram-pilot/assets/"];

/** The root that the page was served from, ending in "/". The script's own address knows it best: both lie under it. */
export function rootOf(scriptUrl, pageUrl) {
  const script = new URL(scriptUrl);
  for (const marker of MARKERS) {
    const at = script.pathname.indexOf(marker);
    if (at >= 0) return script.origin + script.pathname.slice(0, at + 1);
  }
  const page = new URL(pageUrl);
  return page.origin + page.pathname.slice(0, page.pathname.lastIndexOf("/") + 1);
}

/** The address of a route, with the parameters that are neither null nor undefined. */
export function route(root, path, parameters = {}) {
  const url = new URL(`vram-pilot/v1/${path}`, root);
  for (const [name, value] of Object.entries(parameters)) {
    if (value !== null && value !== undefined) url.searchParams.set(name, String(value));
  }
  return url.href;
}

export function sessionPath(id, rest = "") {
  return `sessions/${encodeURIComponent(id)}${rest}`;
}
