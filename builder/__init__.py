"""builder: the image farm for sm_120 inference engines.

Fifteen rooms, in the order of the data; docs/development.md has a walk through a build.

core      errors, settings, files, progress lines, the client for all HTTP
recipes   TOML files become recipes
engines   how each kind of engine is configured, installed and started
plan      a recipe with all inputs resolved: Dockerfile and build key
sources   inputs fetched, verified, patched and laid out
docker    the only room that talks to Docker
build     the story of a build; images, records, reproduction
image     an image read without running it; two compared
checks    what an image must satisfy, and the verdict
presets   published runs: choose, fit, run, export, receipts
publish   verified images get tags, attachments and signatures
upstream  what moved upstream: patches, nights, bisects, new recipes
site      static pages
measure   the speed of a server; the machine
cli       the commands; the only room that prints and exits
"""

__version__ = "0.1.0"
