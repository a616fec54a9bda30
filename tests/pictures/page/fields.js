// What a board says about its data: transformations, then units, thresholds, colours and overrides,
// all applied by @grafana/data. What this page cannot honour is an error, never left out in silence.
import {
  applyFieldOverrides,
  cacheFieldDisplayNames,
  createFieldConfigRegistry,
  dataLinksOverrideProcessor,
  displayNameOverrideProcessor,
  identityOverrideProcessor,
  numberOverrideProcessor,
  standardFieldConfigEditorRegistry,
  standardTransformers,
  standardTransformersRegistry,
  thresholdsOverrideProcessor,
  transformDataFrame,
  unitOverrideProcessor,
  valueMappingsOverrideProcessor,
} from '@grafana/data';
import { lastValueFrom } from 'rxjs';

import reads from '../reads.json';

const PROCESSORS = {
  color: identityOverrideProcessor,
  decimals: numberOverrideProcessor,
  displayName: displayNameOverrideProcessor,
  links: dataLinksOverrideProcessor,
  mappings: valueMappingsOverrideProcessor,
  max: numberOverrideProcessor,
  min: numberOverrideProcessor,
  noValue: displayNameOverrideProcessor,
  thresholds: thresholdsOverrideProcessor,
  unit: unitOverrideProcessor,
};

const property = (id, process) => ({
  id,
  path: id,
  name: id,
  process,
  shouldApply: () => true,
  settings: {},
  override: () => null,
  editor: () => null,
});

standardFieldConfigEditorRegistry.setInit(() =>
  reads.properties.map((id) => property(id, PROCESSORS[id]))
);
standardTransformersRegistry.setInit(() =>
  reads.transformations.map((id) => ({
    id,
    name: id,
    transformation: async () => Object.values(standardTransformers).find((one) => one.id === id),
  }))
);

// Properties of this panel's own kind, by the names that its JSON uses.
function registryOf(panel) {
  const { defaults, overrides } = panel.fieldConfig;
  const ids = overrides.flatMap((rule) => rule.properties.map(({ id }) => id));
  const custom = [
    ...Object.keys(defaults.custom ?? {}),
    ...ids.filter((id) => id.startsWith('custom.')).map((id) => id.slice('custom.'.length)),
  ];
  const useCustomConfig = (builder) =>
    [...new Set(custom)].forEach((id) =>
      builder.addCustomEditor({ ...property(id, identityOverrideProcessor) })
    );
  return createFieldConfigRegistry({ useCustomConfig }, panel.type);
}

// Frames ready to be drawn.
export async function prepared(panel, frames, theme) {
  refuseUnread(panel);
  const context = { interpolate: (text) => text };
  const steps = panel.transformations ?? [];
  const transformed = await lastValueFrom(transformDataFrame(steps, frames, context));
  const ready = applyFieldOverrides({
    data: transformed,
    fieldConfig: structuredClone(panel.fieldConfig),
    fieldConfigRegistry: registryOf(panel),
    replaceVariables: (text) => text,
    theme,
    timeZone: 'utc',
  });
  cacheFieldDisplayNames(ready); // tables head and sort their columns by these
  return ready;
}

function refuseUnread(panel) {
  const { type, targets, options, fieldConfig, transformations } = panel;
  const { defaults, overrides } = fieldConfig;
  const properties = overrides.flatMap((rule) => rule.properties.map(({ id }) => id));
  const found = [
    [Object.keys(panel), reads.panels],
    [targets.flatMap(Object.keys), reads.targets],
    [Object.keys(options), reads.options[type]],
    [[...Object.keys(defaults), ...properties].filter((id) => !/^custom(\.|$)/.test(id)), reads.properties],
    [overrides.map(({ matcher }) => matcher.id), reads.matchers],
    [transformations.map(({ id }) => id), reads.transformations],
  ];
  const unread = found.flatMap(([names, known]) => names.filter((name) => !known.includes(name)));
  if (unread.length) {
    throw new Error(`this page does not know ${unread.join(', ')}`);
  }
}
