// Queries of a panel, asked of Prometheus' HTTP API; answers as the data frames that Grafana's
// Prometheus data source makes of them.
import { createDataFrame, dateTime, FieldType, rangeUtil } from '@grafana/data';

const { prometheus, since: from, until, scrape, variables } = window.PICTURE;
export const RANGE = {
  from: dateTime(from * 1000),
  to: dateTime(until * 1000),
  raw: { from: dateTime(from * 1000), to: dateTime(until * 1000) },
};

// A variable of the board, or one of Grafana's own; one without a value is a fault of the board.
export function interpolate(text, macros = {}) {
  return text.replace(/\$([a-z_]\w*)|\$\{(\w+)(?::\w+)?\}/g, (whole, plain, braced) => {
    const value = { ...variables, ...macros }[plain ?? braced];
    if (value === undefined) {
      throw new Error(`${whole} has no value`);
    }
    return value;
  });
}

// Seconds between two points: as many points as the panel has pixels, none closer than scrapes, or
// than the panel says.
function stepOf({ interval }, width) {
  const points = Math.max(1, Math.floor(width));
  return rangeUtil.calculateInterval(RANGE, points, interval ?? `${scrape}s`).intervalMs / 1000;
}

async function ask(endpoint, parameters) {
  const answer = await fetch(`${prometheus}/api/v1/${endpoint}?${new URLSearchParams(parameters)}`);
  const { status, data, error } = await answer.json();
  if (status !== 'success') {
    throw new Error(`${error}: ${parameters.query}`);
  }
  return data.result;
}

// All frames of a panel that is `width` pixels wide.
export async function framesOf(panel, width) {
  const step = stepOf(panel, width);
  const tables = panel.targets.filter((target) => target.format === 'table').length;
  const answers = await Promise.all(
    panel.targets.map(async (target) => {
      const series = await answerOf(target, step);
      return target.format === 'table'
        ? series.length ? [tableOf(target, series, tables)] : []
        : series.map((one) => frameOf(target, one, step));
    })
  );
  return answers.flat();
}

async function answerOf(target, step) {
  const query = interpolate(target.expr, {
    __interval: `${step}s`,
    __rate_interval: `${Math.max(step + scrape, 4 * scrape)}s`,
    __range: `${until - from}s`,
  });
  if (target.instant) {
    const series = await ask('query', { query, time: until });
    return series.map(({ metric, value }) => ({ metric, values: [value] }));
  }
  const [start, end] = [from, until].map((at) => Math.floor(at / step) * step);
  return ask('query_range', { query, start, end, step });
}

const times = (values, config = {}) => ({
  name: 'Time',
  type: FieldType.time,
  config,
  values: values.map(([at]) => at * 1000),
});

// One series: its times and its values. A gap is where a step has no value.
function frameOf(target, { metric, values }, step) {
  const labels = Object.fromEntries(Object.entries(metric).filter(([name]) => name !== '__name__'));
  return createDataFrame({
    refId: target.refId,
    fields: [
      times(values, { interval: step * 1000 }),
      {
        name: metric.__name__ ?? 'Value',
        type: FieldType.number,
        config: { displayNameFromDS: legendOf(target, labels) },
        labels,
        values: values.map(([, value]) => number(value)),
      },
    ],
  });
}

// `{{label}}` in a legend is the value of the label. "__auto" leaves names to Grafana, which
// builds them of labels, but for a series without any.
function legendOf({ legendFormat, expr }, labels) {
  if (legendFormat === '__auto') {
    return Object.keys(labels).length ? undefined : expr;
  }
  return legendFormat.replace(/\{\{\s*(\w+)\s*\}\}/g, (_, label) => labels[label] ?? '');
}

// All series of a query as one table: time, a column for each label, the value.
function tableOf(target, series, tables) {
  const labels = [...new Set(series.flatMap(({ metric }) => Object.keys(metric).sort()))];
  const column = (label) => ({
    name: label,
    type: FieldType.string,
    config: { filterable: true },
    values: series.map(({ metric }) => metric[label] ?? ''),
  });
  const last = series.map(({ values }) => values[values.length - 1]);
  return createDataFrame({
    refId: target.refId,
    meta: { preferredVisualisationType: 'rawPrometheus' },
    fields: [
      times(last),
      ...labels.map(column),
      {
        name: tables > 1 ? `Value #${target.refId}` : 'Value',
        type: FieldType.number,
        config: {},
        values: last.map(([, value]) => number(value)),
      },
    ],
  });
}

const number = (text) => ({ '+Inf': Infinity, '-Inf': -Infinity })[text] ?? Number(text);
