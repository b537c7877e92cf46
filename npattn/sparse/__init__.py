"""Attention over what was selected."""
