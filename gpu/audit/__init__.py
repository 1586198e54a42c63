"""Every slot of an executed pool against the decision log, and the parts against the recorder."""
