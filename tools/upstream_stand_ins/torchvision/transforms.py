"""No transforms: the scripts run with --fake_data."""
