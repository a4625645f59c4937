"""``python -m builder`` is ``builder``."""

from builder.cli.app import main

if __name__ == "__main__":
    main()
