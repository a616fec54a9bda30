"""The live page: what the box does now, streamed to browsers; `frame` says what is sent."""
