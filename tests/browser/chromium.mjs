// A headless Chromium, driven over the DevTools protocol through a pipe: nothing to install beside the browser itself.
import { spawn } from 'node:child_process';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

/** Longest wait for anything. */
const LIMIT = 30_000;
const PROGRAMS = [process.env.CHROMIUM, 'chromium-headless-shell', 'chromium', 'google-chrome'].filter(Boolean);

function late(what) {
  return new Promise((_, reject) => setTimeout(() => reject(new Error(`${what}: not within ${LIMIT / 1000} s`)), LIMIT).unref());
}

/** A running browser; `close` ends it. */
export class Browser {
  static async start() {
    let problem;
    for (const program of PROGRAMS) {
      try {
        return await Browser.#of(program);
      } catch (error) {
        problem = error;
      }
    }
    throw new Error(`no Chromium starts (tried ${PROGRAMS.join(', ')}): ${problem?.message}`);
  }

  static async #of(program) {
    const browser = new Browser();
    browser.profile = mkdtempSync(join(tmpdir(), 'kingpost-browser-'));
    const flags = ['--headless', '--no-sandbox', '--disable-gpu', '--disable-dev-shm-usage', '--no-first-run', '--hide-scrollbars', '--remote-debugging-pipe', `--user-data-dir=${browser.profile}`];
    const child = spawn(program, [...flags, 'about:blank'], { stdio: ['ignore', 'ignore', 'ignore', 'pipe', 'pipe'] });
    browser.child = child;
    browser.waiting = new Map();
    browser.pages = new Map();
    browser.next = 1;
    let pending = '';
    child.stdio[4].setEncoding('utf8').on('data', (text) => {
      const messages = (pending + text).split('\0');
      pending = messages.pop();
      messages.forEach((message) => browser.#take(JSON.parse(message)));
    });
    child.stdio[3].on('error', () => {});
    const ended = new Promise((_, reject) => {
      child.once('error', reject);
      child.once('exit', (code) => reject(new Error(`${program} ended with ${code}`)));
    });
    ended.catch(() => {});
    browser.ended = ended;
    await Promise.race([browser.send('Browser.getVersion'), ended]);
    return browser;
  }

  #take(message) {
    if (message.id) {
      const { resolve, reject } = this.waiting.get(message.id) ?? {};
      this.waiting.delete(message.id);
      if (message.error) reject?.(new Error(message.error.message));
      else resolve?.(message.result);
    } else {
      this.pages.get(message.sessionId)?.heard(message);
    }
  }

  send(method, params = {}, sessionId = undefined) {
    const id = this.next++;
    const answer = new Promise((resolve, reject) => this.waiting.set(id, { resolve, reject }));
    this.child.stdio[3].write(`${JSON.stringify({ id, method, params, sessionId })}\0`);
    return Promise.race([answer, this.ended ?? late(method), late(method)]);
  }

  /** A new page of a size, with colours `light` or `dark`. */
  async page({ width, height, scheme = 'light', mobile = false }) {
    const { browserContextId } = await this.send('Target.createBrowserContext');
    const { targetId } = await this.send('Target.createTarget', { url: 'about:blank', browserContextId });
    const { sessionId } = await this.send('Target.attachToTarget', { targetId, flatten: true });
    const page = new Page(this, sessionId);
    this.pages.set(sessionId, page);
    await page.send('Page.enable');
    await page.send('Runtime.enable');
    await page.send('Log.enable');
    await page.send('Network.enable');
    await page.send('Emulation.setDeviceMetricsOverride', { width, height, deviceScaleFactor: 1, mobile });
    await page.send('Emulation.setEmulatedMedia', { features: [{ name: 'prefers-color-scheme', value: scheme }] });
    return page;
  }

  async close() {
    const gone = new Promise((resolve) => this.child.once('exit', resolve));
    this.send('Browser.close').catch(() => {});
    await Promise.race([gone, late('the browser’s end').catch(() => this.child.kill('SIGKILL'))]);
    rmSync(this.profile, { recursive: true, force: true, maxRetries: 5 });
  }
}

/** One page. `problems`: what it complained of: errors of scripts, of the content policy, of requests. */
export class Page {
  constructor(browser, session) {
    this.browser = browser;
    this.session = session;
    this.problems = [];
    this.requests = [];
  }

  heard({ method, params }) {
    if (method === 'Runtime.exceptionThrown') this.problems.push(params.exceptionDetails.exception?.description ?? params.exceptionDetails.text);
    if (method === 'Log.entryAdded' && params.entry.level === 'error') this.problems.push(`${params.entry.text} ${params.entry.url ?? ''}`);
    if (method === 'Runtime.consoleAPICalled' && params.type === 'error') this.problems.push(params.args.map((one) => one.value).join(' '));
    if (method === 'Network.requestWillBeSent') this.requests.push(params.request.url);
  }

  send(method, params) {
    return this.browser.send(method, params, this.session);
  }

  async go(url) {
    const { errorText } = await this.send('Page.navigate', { url });
    if (errorText) throw new Error(`${url}: ${errorText}`);
  }

  /** The value of an expression in the page; promises are waited for. */
  async evaluate(expression) {
    const { result, exceptionDetails } = await this.send('Runtime.evaluate', { expression, awaitPromise: true, returnByValue: true });
    if (exceptionDetails) throw new Error(`${expression}: ${exceptionDetails.exception?.description ?? exceptionDetails.text}`);
    return result.value;
  }

  /** Waits until an expression is true, and returns its value. */
  async until(what, expression) {
    const end = Date.now() + LIMIT;
    for (;;) {
      // While a page is being left there may be nothing to ask.
      const value = await this.evaluate(expression).catch(() => false);
      if (value) return value;
      if (Date.now() > end) {
        const seen = await this.evaluate('document.body.innerText.slice(0, 3000)').catch((error) => error.message);
        throw new Error([`${what}: not within ${LIMIT / 1000} s`, expression, seen, ...this.problems].join('\n'));
      }
      await new Promise((resolve) => setTimeout(resolve, 50));
    }
  }

  /** Presses a key where the focus is. */
  async press(key, code = key, text = undefined) {
    const windowsVirtualKeyCode = { Enter: 13, Tab: 9, Escape: 27, ' ': 32, '/': 191, Backspace: 8, ArrowLeft: 37, ArrowUp: 38, ArrowRight: 39, ArrowDown: 40, Home: 36, End: 35 }[key] ?? 0;
    await this.send('Input.dispatchKeyEvent', { type: text ? 'keyDown' : 'rawKeyDown', key, code, text, windowsVirtualKeyCode });
    await this.send('Input.dispatchKeyEvent', { type: 'keyUp', key, code, windowsVirtualKeyCode });
  }

  async type(text) {
    await this.send('Input.insertText', { text });
  }

  /** The page in full height as a PNG. */
  async picture(file) {
    const { cssContentSize } = await this.send('Page.getLayoutMetrics');
    const clip = { x: 0, y: 0, width: cssContentSize.width, height: cssContentSize.height, scale: 1 };
    const { data } = await this.send('Page.captureScreenshot', { format: 'png', clip, captureBeyondViewport: true });
    writeFileSync(file, Buffer.from(data, 'base64'));
  }
}
