"""See `absl`."""
