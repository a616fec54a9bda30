// One drawing for each kind of panel, by Grafana's own component.
import { getDisplayValueAlignmentFactors, getFieldDisplayValues, renderTextPanelMarkdown } from '@grafana/data';
import { BarGauge, BigValue, TimeSeries, useTheme2, VizRepeater } from '@grafana/ui';
import { TableNG } from '@grafana/ui/unstable';

import reads from '../reads.json';
import { RANGE } from './queries';

const UTC = 'utc';

function Graph({ frames, options, width, height }) {
  return (
    <TimeSeries
      frames={frames}
      width={width}
      height={height}
      timeRange={RANGE}
      timeZone={UTC}
      legend={options.legend}
    />
  );
}

// Figures of a stat or of bars: one for each series.
function Figures({ frames, options, fieldConfig, width, height, draw, ...layout }) {
  const theme = useTheme2();
  const values = () =>
    getFieldDisplayValues({
      data: frames,
      fieldConfig,
      reduceOptions: options.reduceOptions,
      replaceVariables: (text) => text,
      sparkline: false,
      theme,
      timeZone: UTC,
    });
  return (
    <VizRepeater
      source={frames}
      renderCounter={0}
      getValues={values}
      getAlignmentFactors={getDisplayValueAlignmentFactors}
      orientation={options.orientation}
      width={width}
      height={height}
      renderValue={(one) => draw({ ...one, theme })}
      {...layout}
    />
  );
}

function Stat(props) {
  const { colorMode, graphMode, justifyMode, text, textMode } = props.options;
  const draw = ({ value, width, height, count, alignmentFactors, theme }) => (
    <BigValue
      value={value.display}
      {...{ colorMode, graphMode, justifyMode, text, textMode, width, height, count, alignmentFactors, theme }}
    />
  );
  return <Figures {...props} draw={draw} autoGrid />;
}

function Bars(props) {
  const { displayMode, namePlacement, showUnfilled, text, valueMode } = props.options;
  const draw = ({ value, width, height, orientation, alignmentFactors, theme }) => (
    <BarGauge
      value={value.display}
      field={value.field}
      display={value.view?.getFieldDisplayProcessor(value.colIndex)}
      valueDisplayMode={valueMode}
      {...{ displayMode, namePlacement, showUnfilled, text, width, height, orientation, alignmentFactors, theme }}
    />
  );
  return <Figures {...props} draw={draw} {...sizesOf(props.options)} />;
}

// How thick bars may be, in pixels: as the board says, or any.
function sizesOf({ sizing, minVizHeight, maxVizHeight, minVizWidth }) {
  return sizing === 'manual' ? { minVizHeight, maxVizHeight, minVizWidth } : { minVizHeight: 16, minVizWidth: 8 };
}

function Table({ frames, options, fieldConfig, width, height }) {
  return (
    <TableNG
      data={frames[0]}
      width={width}
      height={height}
      noHeader={!options.showHeader}
      cellHeight={options.cellHeight}
      sortBy={options.sortBy}
      fieldConfig={fieldConfig}
      timeRange={RANGE}
      enableVirtualization={false}
    />
  );
}

function Text({ options, height }) {
  const html = { __html: renderTextPanelMarkdown(options.content) };
  return <div className="markdown-html" style={{ height, overflow: 'auto', padding: 8 }} dangerouslySetInnerHTML={html} />;
}

const DRAWINGS = { TimeSeries: Graph, BigValue: Stat, BarGauge: Bars, TableNG: Table, div: Text };

// The drawing for a kind of panel; null where Grafana publishes no component for it.
export function drawingOf(type) {
  const component = reads.components[type];
  if (component === undefined || (component && !DRAWINGS[component])) {
    throw new Error(`panels of type ${type} are unknown here`);
  }
  return component && DRAWINGS[component];
}
