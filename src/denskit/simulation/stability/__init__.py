"""The study of simulations: how long they stay stable, and how true their structure is."""
