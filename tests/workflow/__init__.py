"""Tests of layby.workflow."""
