"""What Weir knows about its own work: one record per exchange, in the access log and in metrics."""
