"""Benchmarks of engines: measured run by run, evaluated, saved, compared, drawn."""
