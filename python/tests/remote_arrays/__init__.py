"""Tests of remote arrays."""
