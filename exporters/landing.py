"""The page at `/`: what this is, and where to go from here."""

from base64 import b64encode
from hashlib import sha256
from html import escape

STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:40rem;margin:3rem auto;padding:0 1rem}"
    "li{margin:.4rem 0}:root{color-scheme:light dark}"
)
LINKS = (
    ("/metrics", "metrics", "for Prometheus: text or OpenMetrics"),
    ("/api/v1/snapshot", "snapshot", "everything known at this tick, as JSON"),
    ("/-/ready", "ready", "whether every counter has been read once"),
    ("/-/healthy", "healthy", "whether the agent answers"),
)
TEMPLATE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>dgx-telemetry</title>
<style>{style}</style>
</head>
<body>
<h1>dgx-telemetry</h1>
<p>Version {version}. Where each GPU's time goes, and how close each data path is to its limit.</p>
<ul>
{links}
</ul>
</body>
</html>
"""


def page(version: str) -> str:
    """The whole page as HTML, without script and without anything from elsewhere."""
    links = "\n".join(
        f'<li><a href="{path}">{name}</a>: {purpose}</li>' for path, name, purpose in LINKS
    )
    return TEMPLATE.format(style=STYLE, version=escape(version), links=links)


def policy() -> str:
    """The Content-Security-Policy of the page: its own style and nothing else."""
    digest = b64encode(sha256(STYLE.encode()).digest()).decode()
    return (
        f"default-src 'none'; style-src 'sha256-{digest}'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
