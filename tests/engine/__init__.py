"""Tests of layby.engine."""
