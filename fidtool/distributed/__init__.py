"""Discovery of the launcher, communication between ranks, and detection of failed ranks."""
