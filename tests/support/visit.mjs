// Visits pages in headless Chromium over its DevTools protocol, and prints what it finds as JSON.
// Called with the program, axe.min.js, a directory for screenshots, and a file of visits: a list of
// {name, url, width, dark, script, steps}. A step is a key (Tab, Enter, ArrowDown), "Tab to SELECTOR",
// "Go PAGE", "Back", or an expression that is evaluated in the page; "script": false switches the
// page's own scripts off.
import { spawn } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";

const [program, axe, shots, list] = process.argv.slice(2);
const profile = mkdtempSync(join(tmpdir(), "visit-"));
const flags = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"];
const browser = spawn(program, [...flags, "--remote-debugging-port=0", `--user-data-dir=${profile}`, "about:blank"]);
const ended = new Promise((resolve) => browser.on("exit", resolve));
const KEYS = { Tab: 9, Enter: 13, ArrowDown: 40 };
const PAINT = `new Promise((resolve) =>
  new PerformanceObserver((list) => {
    for (const each of list.getEntriesByName("first-contentful-paint")) resolve(each.startTime);
  }).observe({ type: "paint", buffered: true }))`;
const MOVED = `new Promise((resolve) => {
  let moved = 0;
  new PerformanceObserver((list) => {
    for (const each of list.getEntries()) moved += each.value;
  }).observe({ type: "layout-shift", buffered: true });
  setTimeout(() => resolve(moved), 100);
})`;
const LONGEST = 2500; // pixels of a screenshot

function address() {
  return new Promise((resolve, reject) => {
    let text = "";
    browser.stderr.on("data", (part) => {
      text += part;
      const found = /DevTools listening on (\S+)/.exec(text);
      if (found) resolve(found[1]);
    });
    ended.then(() => reject(new Error(`the browser ended: ${text}`)));
    browser.on("error", reject);
  });
}

async function connected(url) {
  const socket = new WebSocket(url);
  await new Promise((resolve, reject) => {
    socket.onopen = resolve;
    socket.onerror = reject;
  });
  const waiting = new Map();
  const events = [];
  let last = 0;
  socket.onmessage = ({ data }) => {
    const message = JSON.parse(data);
    if (!message.id) return void events.push(message);
    const { resolve, reject } = waiting.get(message.id);
    if (message.error) reject(new Error(message.error.message));
    else resolve(message.result);
  };
  const send = (method, params = {}, sessionId = undefined) =>
    new Promise((resolve, reject) => {
      waiting.set(++last, { resolve, reject });
      socket.send(JSON.stringify({ id: last, method, params, sessionId }));
    });
  return { send, events };
}

async function opened({ send, events }, { url, width, dark, script }) {
  const { targetId } = await send("Target.createTarget", { url: "about:blank" });
  const { sessionId } = await send("Target.attachToTarget", { targetId, flatten: true });
  const tell = (method, params) => send(method, params, sessionId);
  const seen = (...methods) =>
    events.filter((event) => event.sessionId === sessionId && methods.includes(event.method)).map((event) => event.params);
  for (const domain of ["Page", "Runtime", "Network", "Log"]) await tell(`${domain}.enable`);
  await tell("Emulation.setDeviceMetricsOverride", { width, height: 800, deviceScaleFactor: 1, mobile: false });
  await tell("Emulation.setEmulatedMedia", { features: [{ name: "prefers-color-scheme", value: dark ? "dark" : "light" }] });
  await tell("Emulation.setFocusEmulationEnabled", { enabled: true }); // the clipboard wants it
  await tell("Emulation.setScriptExecutionDisabled", { value: !script });
  await tell("Page.navigate", { url });
  while (!seen("Page.loadEventFired").length) await new Promise((resolve) => setTimeout(resolve, 20));
  // The page's scripts had their turn, or none; what is evaluated from here on needs an engine.
  await tell("Emulation.setScriptExecutionDisabled", { value: false });
  return { tell, seen, close: () => send("Target.closeTarget", { targetId }) };
}

async function visit(connection, wanted) {
  const { name, width, steps } = wanted;
  const { tell, seen, close } = await opened(connection, wanted);
  const evaluate = async (expression) => {
    const { result, exceptionDetails: fault } = await tell("Runtime.evaluate", { expression, awaitPromise: true, returnByValue: true });
    if (fault) throw new Error(`${name}: ${fault.exception?.description ?? fault.text}`);
    return result.value;
  };
  const press = async (key) => {
    const event = { key, code: key, windowsVirtualKeyCode: KEYS[key] };
    await tell("Input.dispatchKeyEvent", { type: "keyDown", text: key === "Enter" ? "\r" : undefined, ...event });
    await tell("Input.dispatchKeyEvent", { type: "keyUp", ...event });
  };
  const arrived = async (page) => {
    const there = `location.href.endsWith(${JSON.stringify(page)}) && document.readyState === "complete"`;
    while (!(await evaluate(there).catch(() => false))) await new Promise((resolve) => setTimeout(resolve, 20));
  };
  const values = [];
  for (const step of steps) {
    if (step in KEYS) await press(step);
    else if (step.startsWith("Tab to ")) {
      const focused = `document.activeElement.matches(${JSON.stringify(step.slice(7))})`;
      for (let count = 0; !(await evaluate(focused)); count++) {
        if (count > 99) throw new Error(`${name}: no key leads to ${step.slice(7)}`);
        await press("Tab");
      }
    } else if (step.startsWith("Go ")) {
      await tell("Page.navigate", { url: new URL(step.slice(3), wanted.url).href });
      await arrived(step.slice(3));
    } else if (step === "Back") {
      const { currentIndex, entries } = await tell("Page.getNavigationHistory");
      await tell("Page.navigateToHistoryEntry", { entryId: entries[currentIndex - 1].id });
      await arrived(entries[currentIndex - 1].url);
    }
    else values.push(await evaluate(step));
  }
  const found = {
    name,
    values,
    paint: await evaluate(PAINT),
    moved: await evaluate(MOVED),
    wide: await evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth"),
    requests: seen("Network.requestWillBeSent").map((each) => each.request.url),
    errors: seen("Runtime.exceptionThrown", "Log.entryAdded").map((each) => JSON.stringify(each)),
  };
  await evaluate(readFileSync(axe, "utf8"));
  found.faults = await evaluate("axe.run().then((told) => told.violations.map((each) => `${each.id}: ${each.nodes[0].html}`))");
  const { cssContentSize } = await tell("Page.getLayoutMetrics");
  const clip = { x: 0, y: 0, width, height: Math.min(cssContentSize.height, LONGEST), scale: 1 };
  const { data } = await tell("Page.captureScreenshot", { clip, captureBeyondViewport: true });
  writeFileSync(join(shots, `${name}.png`), Buffer.from(data, "base64"));
  await close();
  return found;
}

try {
  const connection = await connected(await address());
  await connection.send("Browser.grantPermissions", { permissions: ["clipboardReadWrite", "clipboardSanitizedWrite"] });
  const found = [];
  for (const each of JSON.parse(readFileSync(list, "utf8"))) found.push(await visit(connection, each));
  await new Promise((resolve) => process.stdout.write(JSON.stringify(found), resolve));
} finally {
  browser.kill();
  await ended;
  rmSync(profile, { recursive: true, force: true, maxRetries: 5 });
}
process.exit();
