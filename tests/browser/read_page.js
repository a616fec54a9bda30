(() => {
  const list = (selector, read) => [...document.querySelectorAll(selector)].map(read);
  const of = (node, name) => node.closest(`[data-${name}]`)?.getAttribute(`data-${name}`);
  return {
    headline: document.querySelector('#headline').textContent,
    level: document.querySelector('#headline').dataset.level,
    tiles: list('.tile', ({ dataset }) => [+dataset.gpu, dataset.state, dataset.cause ?? '']),
    faults: list('.tile[data-faults]', (tile) => +tile.dataset.gpu),
    saturated: list('.flow[data-level]:not(dialog *)', (flow) =>
      [of(flow, 'path'), of(flow, 'device'), of(flow, 'direction')].join(' ')),
    ports: list('tr[data-level]', (row) => row.dataset.device),
    edges: list('#graph-drawing .edge', ({ dataset }) => `${dataset.gpus}: ${dataset.load}`),
    notes: document.querySelector('#graph-notes').textContent,
    findings: list('#findings .words, #headline .words, #sound', (line) => line.textContent),
  };
})()
