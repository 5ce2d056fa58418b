"""The state machine that follows a training step."""
