"""The caller's side: an exchange begins and ends here."""
