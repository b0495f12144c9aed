"""Tests of layby.wire."""
