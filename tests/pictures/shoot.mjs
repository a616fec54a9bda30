// Bundles the page, opens it in Chromium, waits until every panel is drawn, and writes a picture.
// Runs where npm has installed what package.json lists; the order of pictures comes on stdin.
import { createReadStream, existsSync } from 'node:fs';
import { createServer } from 'node:http';
import { join, normalize } from 'node:path';
import { json } from 'node:stream/consumers';

import { build } from 'esbuild';
import { chromium } from 'playwright-core';

const ICONS = '/public/build/img/icons/';
const TYPES = { html: 'text/html', js: 'text/javascript', css: 'text/css', svg: 'image/svg+xml' };
const TALL = 5000; // pixels: tables draw only the rows that are in view
const PATIENCE = 120_000; // milliseconds for a board, on a busy machine

async function bundle(folder) {
  await build({
    entryPoints: [join(folder, 'page/main.jsx')],
    outdir: join(folder, 'bundle'),
    bundle: true,
    format: 'iife',
    jsx: 'automatic',
    minify: true,
    loader: { '.woff': 'dataurl', '.woff2': 'dataurl', '.svg': 'dataurl', '.png': 'dataurl', '.ttf': 'empty' },
    define: { 'process.env.NODE_ENV': '"production"', global: 'window' },
    logLevel: 'error',
  });
}

// The page, its bundle, and the icons that Grafana's components ask a Grafana for.
function served(folder) {
  const icons = join(folder, 'node_modules/@grafana/ui/dist/public/img/icons');
  const server = createServer((request, response) => {
    const path = normalize(new URL(request.url, 'http://page').pathname);
    const found = [
      path === '/' && join(folder, 'page/index.html'),
      path.startsWith(ICONS) && join(icons, path.slice(ICONS.length)),
      join(folder, 'bundle', path),
    ].find((file) => file && existsSync(file));
    if (!found) {
      response.writeHead(404).end();
      return;
    }
    response.writeHead(200, { 'content-type': TYPES[found.split('.').pop()] ?? 'text/plain' });
    createReadStream(found).pipe(response);
  });
  return new Promise((resolve) => server.listen(0, '127.0.0.1', () => resolve(server)));
}

// One board as a picture, and what the page says of it.
async function shot(browser, address, { file, ...picture }) {
  const page = await browser.newPage({
    viewport: { width: picture.width + 32, height: TALL },
    deviceScaleFactor: picture.scale,
  });
  const thrown = [];
  page.on('pageerror', (error) => thrown.push(error.message));
  await page.addInitScript((given) => {
    const report = { pending: 0, undrawn: [], empty: [], failed: [] };
    window.PICTURE = { ...given, report };
  }, picture);
  await page.goto(address, { timeout: PATIENCE });
  await page.waitForSelector('#board > *', { timeout: PATIENCE });
  await page.waitForFunction(() => window.PICTURE.report.pending === 0, { timeout: PATIENCE });
  await page.evaluate(() => document.fonts.ready);
  await page.waitForTimeout(1500); // legends are measured, then graphs take the room that is left
  await page.locator('#board').screenshot({ path: file, timeout: PATIENCE });
  const { undrawn, empty, failed } = await page.evaluate(() => window.PICTURE.report);
  await page.close();
  return { file, undrawn, empty, failed: [...failed, ...thrown] };
}

const { folder, browser: program, pictures } = await json(process.stdin);
await bundle(folder);
const server = await served(folder);
const browser = await chromium.launch({ executablePath: program, args: ['--no-sandbox'] });
try {
  for (const picture of pictures) {
    const said = await shot(browser, `http://127.0.0.1:${server.address().port}/`, picture);
    console.log(JSON.stringify(said));
  }
} finally {
  await browser.close();
  server.close();
}
