// Visits pages in headless Chromium over its DevTools protocol, and prints what it finds as JSON.
// Called with the program, axe.min.js, a directory for screenshots, and a file of visits: a list of
// {url, name, width, dark, script, steps}; each step is an expression that is evaluated in the page.
import { spawn } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";

const [program, axe, shots, list] = process.argv.slice(2);
const profile = mkdtempSync(join(tmpdir(), "visit-"));
const flags = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"];
const browser = spawn(program, [...flags, "--remote-debugging-port=0", `--user-data-dir=${profile}`, "about:blank"]);

function address() {
  return new Promise((resolve, reject) => {
    let text = "";
    browser.stderr.on("data", (part) => {
      text += part;
      const found = /DevTools listening on (\S+)/.exec(text);
      if (found) resolve(found[1]);
    });
    browser.on("exit", () => reject(new Error(`the browser ended: ${text}`)));
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
    if (!message.id) return events.push(message);
    const { resolve, reject } = waiting.get(message.id);
    message.error ? reject(new Error(message.error.message)) : resolve(message.result);
  };
  const send = (method, params = {}, sessionId = undefined) =>
    new Promise((resolve, reject) => {
      waiting.set(++last, { resolve, reject });
      socket.send(JSON.stringify({ id: last, method, params, sessionId }));
    });
  return { send, events };
}

async function visit({ send, events }, { url, name, width, dark, script, steps }) {
  const { targetId } = await send("Target.createTarget", { url: "about:blank" });
  const { sessionId } = await send("Target.attachToTarget", { targetId, flatten: true });
  const tell = (method, params) => send(method, params, sessionId);
  const evaluate = async (expression) => {
    const { result, exceptionDetails } = await tell("Runtime.evaluate", { expression, awaitPromise: true, returnByValue: true });
    if (exceptionDetails) throw new Error(`${name}: ${exceptionDetails.exception?.description ?? exceptionDetails.text}`);
    return result.value;
  };
  for (const domain of ["Page", "Runtime", "Network", "Log"]) await tell(`${domain}.enable`);
  await tell("Emulation.setDeviceMetricsOverride", { width, height: 800, deviceScaleFactor: 1, mobile: width < 600 });
  await tell("Emulation.setEmulatedMedia", { features: [{ name: "prefers-color-scheme", value: dark ? "dark" : "light" }] });
  await tell("Emulation.setScriptExecutionDisabled", { value: !script });
  const ours = (event) => event.sessionId === sessionId;
  await tell("Page.navigate", { url });
  while (!events.some((event) => ours(event) && event.method === "Page.loadEventFired"))
    await new Promise((resolve) => setTimeout(resolve, 20));
  // The page's own scripts did not run; those of this program need an engine.
  await tell("Emulation.setScriptExecutionDisabled", { value: false });
  const values = [];
  for (const step of steps) {
    if (step === "Tab" || step === "Enter" || step === "ArrowDown") {
      const key = { key: step, code: step, windowsVirtualKeyCode: { Tab: 9, Enter: 13, ArrowDown: 40 }[step] };
      await tell("Input.dispatchKeyEvent", { type: "keyDown", text: step === "Enter" ? "\r" : undefined, ...key });
      await tell("Input.dispatchKeyEvent", { type: "keyUp", ...key });
    } else values.push(await evaluate(step));
  }
  const paint = await evaluate("performance.getEntriesByName('first-contentful-paint')[0]?.startTime");
  const wide = await evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth");
  await evaluate(readFileSync(axe, "utf8"));
  const faults = await evaluate("axe.run().then((found) => found.violations.map((each) => `${each.id}: ${each.nodes.map((node) => node.html).slice(0, 3).join(' ')}`))");
  const { cssContentSize } = await tell("Page.getLayoutMetrics");
  const clip = { x: 0, y: 0, width, height: Math.min(cssContentSize.height, 2500), scale: 1 };
  const { data } = await tell("Page.captureScreenshot", { clip, captureBeyondViewport: true });
  writeFileSync(join(shots, `${name}.png`), Buffer.from(data, "base64"));
  const asked = events.filter((event) => ours(event) && event.method === "Network.requestWillBeSent");
  const errors = events.filter((event) => ours(event) && (event.method === "Runtime.exceptionThrown" || event.method === "Log.entryAdded"));
  await send("Target.closeTarget", { targetId });
  return { name, values, paint, wide, faults, requests: asked.map((event) => event.params.request.url), errors: errors.map((event) => JSON.stringify(event.params)) };
}

try {
  const connection = await connected(await address());
  const found = [];
  for (const each of JSON.parse(readFileSync(list, "utf8"))) found.push(await visit(connection, each));
  console.log(JSON.stringify(found, null, 1));
} finally {
  browser.kill();
  await new Promise((resolve) => (browser.exitCode === null && browser.signalCode === null ? browser.on("exit", resolve) : resolve()));
  rmSync(profile, { recursive: true, force: true, maxRetries: 5 });
}
process.exit();
