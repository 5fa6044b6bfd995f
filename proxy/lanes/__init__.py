"""How a decided request is carried to its upstream. Lanes do not know each other."""
