"""Tests of layby.store."""
