// One tick as the page shows it: what seldom changes (`machine`) and what always does (`tick`).

/** The two put together, by place; null while they do not belong to the same edition. */
export function whole(machine, tick) {
  if (!machine || !tick || machine.edition !== tick.edition) return null;
  return {
    ...tick,
    machine: machine.machine,
    graph: machine.graph,
    absent: machine.absent,
    reasons: machine.reasons,
    speeds: machine.speeds,
    rates: machine.rates,
    events: machine.events,
    gpus: machine.gpus.map((gpu, place) => gpuOf(gpu, tick.gpus[place])),
    paths: machine.paths.map((path, place) => {
      const [ratio, rate, saturated] = tick.paths[place];
      return { ...path, ratio, bytes_per_second: rate, saturated };
    }),
    links: machine.links.map((link, place) => {
      const [up, transmit, receive] = tick.links[place];
      return { ...link, up, transmit, receive };
    }),
  };
}

function gpuOf(gpu, now) {
  const meters = gpu.meters.map((meter, place) => ({ ...meter, value: now.values[place] }));
  return { ...gpu, ...now, meters };
}
