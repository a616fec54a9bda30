// The page of one picture: a board in one of Grafana's themes. The driver sets window.PICTURE.
import '@fontsource/inter/400.css';
import '@fontsource/inter/500.css';
import '@fontsource/roboto-mono/400.css';

import { createTheme, locationUtil, ThemeContext } from '@grafana/data';
import { GlobalStyles } from '@grafana/ui';
import { createRoot } from 'react-dom/client';

import { Board } from './board';

locationUtil.initialize({
  config: { appSubUrl: '' },
  getVariablesUrlParams: () => ({}),
  getTimeRangeForUrl: () => ({}),
});

const theme = createTheme({ colors: { mode: window.PICTURE.theme } });
document.body.style.background = theme.colors.background.canvas;
createRoot(document.getElementById('board')).render(
  <ThemeContext.Provider value={theme}>
    <GlobalStyles />
    <Board />
  </ThemeContext.Provider>
);
