"""The provider's side: where requests go, over which connections, and what may be sent again."""
