"""What is known about providers: prices, tiers, batch APIs."""
