"""The live page: what the box does now, streamed to browsers; `frame` tells what is sent."""
