"""`dgx-telemetry`, also as `python -m agent`."""

import os
import sys

# aiohttp makes TLS contexts for its client when it is imported, with every CA of the machine in
# them: 2 MB of memory for a server that never calls anybody.
os.environ["SSL_CERT_FILE"] = os.devnull

from agent.commands.parser import run_command


def main() -> None:
    """Run the command line and exit with its status: 2 for bad usage and configuration."""
    sys.exit(run_command(sys.argv[1:]))


if __name__ == "__main__":
    main()
