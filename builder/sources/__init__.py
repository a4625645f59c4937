"""The inputs of a build, fetched, verified, patched and laid out: git, PyPI, Debian, patches."""
