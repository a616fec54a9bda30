// The connection to the agent: events as they come, and whether what is shown is still true.

const STALE = 3000; // ms without a tick after which the figures are called stale
const AGAIN = 5000; // ms until a refused connection is tried again
const REFUSALS = {
  401: "the agent asks for a login",
  403: "the agent refuses this page",
  503: "too many pages are open, or the agent ends",
};

/**
 * Follow the stream at `address`. `hear[name](data)` gets each event; `report(feed, since, reason)`
 * each change of `feed`: live, stale, reconnecting, refused; `since` is the time of the last status
 * in milliseconds, null before the first.
 */
export function follow(address, hear, report) {
  const state = { feed: "", since: null, reason: "" };
  const change = (feed, reason = "") => {
    if (state.feed === feed && state.reason === reason) return;
    Object.assign(state, { feed, reason });
    report(feed, state.since, reason);
  };
  const connect = () => {
    const source = new EventSource(address);
    for (const [name, listener] of Object.entries(hear)) {
      source.addEventListener(name, (event) => {
        listener(JSON.parse(event.data));
        if (name !== "status") return;
        state.since = Date.now();
        change("live");
      });
    }
    source.addEventListener("error", () => {
      if (source.readyState === EventSource.CONNECTING) return change("reconnecting");
      source.close();
      return explain(address, change, connect);
    });
  };
  connect();
  setInterval(() => {
    if (state.feed === "live" && Date.now() - state.since > STALE) change("stale");
  }, 500);
}

/** EventSource does not say why it was refused: ask once more, and try again later. */
async function explain(address, change, connect) {
  const asking = new AbortController();
  try {
    const answer = await fetch(address, { signal: asking.signal });
    const reason = REFUSALS[answer.status] ?? `the agent answers ${answer.status}`;
    if (answer.ok) change("reconnecting");
    else change("refused", reason);
  } catch {
    change("reconnecting");
  } finally {
    asking.abort();
    setTimeout(connect, AGAIN);
  }
}
