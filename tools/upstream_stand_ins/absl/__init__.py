"""The few names of Google's absl that torch_xla's tests import."""
