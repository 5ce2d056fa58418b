"""No data sets: the scripts run with --fake_data."""
