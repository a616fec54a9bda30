globalThis.lags = [];
new MutationObserver(() => {
  const updated = Date.parse(document.querySelector('#updated').dateTime);
  lags.push((Date.now() - updated) / 1000);
}).observe(document.querySelector('#headline'), {childList: true, subtree: true});
0
