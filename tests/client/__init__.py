"""Tests of layby.client."""
