"""Attention over everything kept."""
