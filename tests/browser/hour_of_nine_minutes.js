import('/day.js').then(async ({ followDay }) => {
  const [now, of] = [new Date(), { 'starved/disk': 540 }];
  now.setHours(1, 30);
  const hour = Math.floor(now / 3.6e6) - 1;
  const rows = [{ seconds: of }, { seconds: of }];
  const found = { hours: [{ hour, rows, gpus: { a: of, b: of } }] };
  window.fetch = async () => ({ ok: true, json: async () => found });
  await followDay(document.getElementById('day'), () => now.getTime());
  return document.querySelector('#day + .key').textContent;
})
