"""What the mechanisms stand on."""
