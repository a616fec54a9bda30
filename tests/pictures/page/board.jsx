// A board: its grid of rows and panels.
import { PanelChrome, useTheme2 } from '@grafana/ui';
import { Component, useEffect, useState } from 'react';

import { prepared } from './fields';
import { drawingOf } from './kinds';
import { framesOf, RANGE } from './queries';

const { board, width, opened, variables, report } = window.PICTURE;

// Grafana's grid: 24 columns, lines of 30 pixels, 8 pixels between panels.
const COLUMNS = 24;
const LINE = 30;
const GAP = 8;

const across = (columns) => ((width + GAP) / COLUMNS) * columns - GAP;
const down = (lines) => lines * (LINE + GAP) - GAP;

export function Board() {
  const [entries, bottom] = laidOut();
  return (
    <div style={{ width, padding: 0 }}>
      <Heading />
      <div style={{ position: 'relative', height: down(bottom) }}>
        {entries.map(({ panel, y }) => (
          <Placed key={panel.id} panel={panel} y={y} />
        ))}
      </div>
    </div>
  );
}

// Rows and panels with their lines; rows that are collapsed are opened where the picture asks.
function laidOut() {
  let shift = 0;
  const entries = board.panels.flatMap((panel) => {
    const y = panel.gridPos.y + shift;
    const inside = panel.type === 'row' && panel.collapsed && opened ? panel.panels : [];
    const lines = Math.max(0, ...inside.map(({ gridPos }) => gridPos.y + gridPos.h - panel.gridPos.y - 1));
    const below = inside.map((one) => ({ panel: one, y: one.gridPos.y + shift }));
    shift += lines;
    return [{ panel, y }, ...below];
  });
  return [entries, Math.max(...entries.map(({ panel, y }) => y + panel.gridPos.h))];
}

function Heading() {
  const theme = useTheme2();
  const shown = board.templating.list
    .filter(({ name }) => name !== 'datasource')
    .map(({ name, label }) => `${label}: ${chosen(variables[name])}`);
  const time = [RANGE.from, RANGE.to].map((at) => at.utc().format('YYYY-MM-DD HH:mm:ss'));
  return (
    <div style={{ ...theme.typography.bodySmall, color: theme.colors.text.secondary, padding: '0 4px 8px' }}>
      <span style={{ ...theme.typography.h3, color: theme.colors.text.primary, marginRight: 24 }}>
        {board.title}
      </span>
      {[...shown, `${time.join(' to ')} UTC`].join('   ·   ')}
    </div>
  );
}

const chosen = (value) => (/^\.[+*]$/.test(value) ? 'All' : value.replaceAll('|', ' + '));

function Placed({ panel, y }) {
  const { x, w, h } = panel.gridPos;
  const box = { width: across(w), height: down(h) };
  const place = { position: 'absolute', left: x * ((width + GAP) / COLUMNS), top: y * (LINE + GAP), ...box };
  return <div style={place}>{panel.type === 'row' ? <Row panel={panel} /> : <Framed panel={panel} {...box} />}</div>;
}

function Row({ panel }) {
  const theme = useTheme2();
  const closed = panel.collapsed && !opened;
  const inside = closed ? ` (${panel.panels.length} panels)` : '';
  return (
    <div style={{ ...theme.typography.h5, lineHeight: `${LINE}px`, color: theme.colors.text.primary }}>
      {closed ? '▸' : '▾'} {panel.title}
      <span style={{ color: theme.colors.text.secondary, fontWeight: 400 }}>{inside}</span>
    </div>
  );
}

function Framed({ panel, width, height }) {
  return (
    <PanelChrome title={panel.title} description={panel.description} width={width} height={height}>
      {(w, h) => (
        <Guarded panel={panel}>
          <Content panel={panel} width={w} height={h} />
        </Guarded>
      )}
    </PanelChrome>
  );
}

function Content({ panel, width, height }) {
  const theme = useTheme2();
  const Drawing = drawingOf(panel.type);
  const [frames, setFrames] = useState(panel.targets ? null : []);
  useEffect(() => {
    if (!panel.targets) {
      return;
    }
    if (Drawing === null) {
      report.undrawn.push(`${panel.title} (${panel.type})`);
      return;
    }
    report.pending += 1;
    framesOf(panel, width)
      .then((found) => prepared(panel, found, theme))
      .then(setFrames)
      .catch((error) => report.failed.push(`${panel.title}: ${error.message}`))
      .finally(() => (report.pending -= 1));
  }, []);
  if (Drawing === null) {
    return <Said>not drawn here: Grafana publishes no component for {panel.type} panels</Said>;
  }
  if (frames === null) {
    return null;
  }
  if (panel.targets && !frames.some((frame) => frame.length)) {
    report.empty.push(panel.title);
    return <Said>{panel.fieldConfig.defaults.noValue}</Said>;
  }
  return <Drawing {...{ frames, width, height }} options={panel.options} fieldConfig={panel.fieldConfig} />;
}

function Said({ children }) {
  const theme = useTheme2();
  const middle = { display: 'flex', height: '100%', alignItems: 'center', justifyContent: 'center' };
  return <div style={{ ...middle, color: theme.colors.text.secondary }}>{children}</div>;
}

// A component that throws fails the picture, and says which panel it was.
class Guarded extends Component {
  state = { error: null };
  static getDerivedStateFromError(error) {
    return { error };
  }
  componentDidCatch(error) {
    report.failed.push(`${this.props.panel.title}: ${error.message}`);
  }
  render() {
    return this.state.error ? <Said>{this.state.error.message}</Said> : this.props.children;
  }
}
