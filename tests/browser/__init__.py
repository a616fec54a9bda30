"""The live page in Chromium: what a person sees of each scenario, and what the page costs."""
