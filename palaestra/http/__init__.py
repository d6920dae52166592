"""What all servers share: addresses and secrets, the rules for requests, and how connections begin and end."""
