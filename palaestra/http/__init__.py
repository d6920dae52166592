"""The rules of HTTP. All servers call them: addresses and secrets, sizes and times, how connections begin and end."""
