"""Memories that add."""
