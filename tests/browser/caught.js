new Promise((resolve) => {
  const caught = [];
  document.addEventListener('securitypolicyviolation', (e) => caught.push(e.effectiveDirective));
  const add = (tag, fill) => {
    const node = document.createElement(tag);
    fill(node);
    document.body.append(node);
  };
  add('script', (node) => { node.textContent = 'globalThis.ran = true'; });
  add('style', (node) => { node.textContent = 'body { display: none }'; });
  add('img', (node) => { node.src = 'http://localhost:1/x.png'; });
  add('iframe', (node) => { node.src = 'http://localhost:1/'; });
  fetch('http://localhost:1/').catch(() => 0);
  const done = () => {
    if (caught.length < 5) setTimeout(done, 50);
    else resolve([caught, globalThis.ran === true]);
  };
  done();
})
