"""`dgx-telemetry`, also as `python -m agent`."""

import sys

from agent.commands.parser import run_command


def main() -> None:
    """Run the command line and exit with its status: 2 for bad usage and configuration."""
    sys.exit(run_command(sys.argv[1:]))


if __name__ == "__main__":
    main()
