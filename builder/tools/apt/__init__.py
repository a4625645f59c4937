"""Debian packages: the sources of this machine, apt's resolver, and .deb files by their digest."""
