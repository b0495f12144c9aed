"""Tests of layby.core."""
